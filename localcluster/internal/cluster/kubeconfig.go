package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// adminKubeconfig is the administrator's, in a cluster's directory.
const adminKubeconfig = "admin.kubeconfig"

// KubeconfigOptions is what "localcluster kubeconfig" was asked for.
type KubeconfigOptions struct {
	Dir    string
	User   string
	Groups []string
}

// ParseKubeconfig reads the command line of "localcluster kubeconfig"; help goes
// to out.
func ParseKubeconfig(args []string, out io.Writer) (KubeconfigOptions, error) {
	var o KubeconfigOptions
	var node string
	set := newFlagSet("kubeconfig", out)
	set.StringVar(&o.Dir, "dir", "", "directory of the cluster (required)")
	set.StringVar(&node, "node", "", "node to authenticate as: user system:node:NODE in group system:nodes")
	set.StringVar(&o.User, "user", "", "user to authenticate as")
	set.StringArrayVar(&o.Groups, "group", nil, "group of the user; may be repeated")
	if err := parse(set, args); err != nil {
		return o, err
	}
	switch {
	case o.Dir == "":
		return o, Usagef("--dir is missing: name the directory that localcluster up was given")
	case (node == "") == (o.User == ""):
		return o, Usagef("name who to authenticate as: either --node NAME or --user NAME")
	case node != "" && len(o.Groups) > 0:
		return o, Usagef("--group goes with --user only: a node is in system:nodes")
	case node != "":
		o.User, o.Groups = "system:node:"+node, []string{"system:nodes"}
	}
	return o, absolute(&o.Dir)
}

// PrintKubeconfig writes to out a kubeconfig for the cluster that o.Dir holds.
func PrintKubeconfig(o KubeconfigOptions, out io.Writer) error {
	l := layout(o.Dir)
	admin, err := clientcmd.LoadFromFile(filepath.Join(o.Dir, adminKubeconfig))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s holds no cluster: start one with localcluster up --dir %s", o.Dir, o.Dir)
	}
	if err != nil {
		return fmt.Errorf("reading the address of the cluster: %w", err)
	}
	known := admin.Clusters[clusterName]
	if known == nil {
		return fmt.Errorf("reading the address of the cluster: %s names no cluster %q", adminKubeconfig, clusterName)
	}
	ca, err := loadAuthority(l.pki("ca.crt"), l.pki("ca.key"))
	if err != nil {
		return err
	}
	content, err := ca.kubeconfig(known.Server, o.User, o.Groups...)
	if err != nil {
		return err
	}
	_, err = out.Write(content)
	return err
}

const clusterName = "localcluster"

// kubeconfig makes a kubeconfig that authenticates as a user by a certificate of
// this authority, all inside one file.
func (a *authority) kubeconfig(server, user string, groups ...string) ([]byte, error) {
	credentials, err := a.client(user, groups...)
	if err != nil {
		return nil, err
	}
	config := api.NewConfig()
	config.Clusters[clusterName] = &api.Cluster{Server: server, CertificateAuthorityData: a.pem}
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: credentials.cert, ClientKeyData: credentials.key}
	config.Contexts[clusterName] = &api.Context{Cluster: clusterName, AuthInfo: user}
	config.CurrentContext = clusterName
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig of %s: %w", user, err)
	}
	return content, nil
}

// writeKubeconfig is kubeconfig, into a file.
func (a *authority) writeKubeconfig(file, server, user string, groups ...string) error {
	content, err := a.kubeconfig(server, user, groups...)
	if err != nil {
		return err
	}
	return writeFile(file, content)
}

// copyFile publishes a file that is complete under a second name.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copying %s: %w", from, err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("making the directory of %s: %w", to, err)
	}
	return writeFile(to, content)
}
