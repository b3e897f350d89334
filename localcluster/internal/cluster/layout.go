package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// layout is a cluster's directory; its methods say what lies where.
type layout string

func (l layout) path(name string) string { return filepath.Join(string(l), name) }
func (l layout) pki(name string) string  { return filepath.Join(string(l), "pki", name) }
func (l layout) log(component string) string {
	return filepath.Join(string(l), "logs", component+".log")
}
func (l layout) kubeconfig(component string) string {
	return filepath.Join(string(l), component+".kubeconfig")
}

// claim makes the directory and locks it against a second cluster in it. The
// lock goes with the returned file, so at the latest with this process.
func (l layout) claim() (*os.File, error) {
	for _, dir := range []string{l.path("pki"), l.path("logs"), l.path("flexvolume")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot use --dir %s: %w; name a directory that this user may write", string(l), err)
		}
	}
	file, err := os.OpenFile(l.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot use --dir %s: %w; name a directory that this user may write", string(l), err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return file, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("a localcluster already runs in %s: stop it, or name another --dir", string(l))
	}
	return nil, fmt.Errorf("locking %s: %w", string(l), err)
}

// credentials writes every certificate, key and kubeconfig that the components
// and the administrator need.
func (l layout) credentials(server string) error {
	ca, err := loadOrCreateAuthority("localcluster", l.pki("ca.crt"), l.pki("ca.key"))
	if err != nil {
		return err
	}
	if err := l.etcdCredentials(); err != nil {
		return err
	}
	if err := l.proxyCredentials(); err != nil {
		return err
	}
	serving, err := ca.server("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	if err := serving.write(l.pki("serving.crt"), l.pki("serving.key")); err != nil {
		return err
	}
	if err := createTokenKey(l.pki("sa.key")); err != nil {
		return err
	}
	users := []struct{ file, user, group string }{
		{l.path(adminKubeconfig), "admin", "system:masters"},
		{l.kubeconfig(ControllerManager), "system:kube-controller-manager", ""},
		{l.kubeconfig(Scheduler), "system:kube-scheduler", ""},
	}
	for _, u := range users {
		var groups []string
		if u.group != "" {
			groups = []string{u.group}
		}
		if err := ca.writeKubeconfig(u.file, server, u.user, groups...); err != nil {
			return err
		}
	}
	return nil
}

// etcdCredentials come from an authority of their own: etcd knows no roles, so
// that whoever authenticates to it reads and writes every object.
func (l layout) etcdCredentials() error {
	ca, err := loadOrCreateAuthority("localcluster-etcd", l.pki("etcd-ca.crt"), l.pki("etcd-ca.key"))
	if err != nil {
		return err
	}
	serving, err := ca.server()
	if err != nil {
		return err
	}
	if err := serving.write(l.pki("etcd.crt"), l.pki("etcd.key")); err != nil {
		return err
	}
	client, err := ca.client(APIServer)
	if err != nil {
		return err
	}
	return client.write(l.pki("etcd-client.crt"), l.pki("etcd-client.key"))
}

// proxyCredentials let kube-apiserver pass a user on to an aggregated API server.
// They come from an authority of their own as well: who holds a certificate of
// this one may be anybody.
func (l layout) proxyCredentials() error {
	ca, err := loadOrCreateAuthority("localcluster-proxy", l.pki("proxy-ca.crt"), l.pki("proxy-ca.key"))
	if err != nil {
		return err
	}
	client, err := ca.client(proxyUser)
	if err != nil {
		return err
	}
	return client.write(l.pki("proxy-client.crt"), l.pki("proxy-client.key"))
}

// auditPolicy records who did what to which object and how it ended, once for
// every request and without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages:
- RequestReceived
rules:
- level: Metadata
`
