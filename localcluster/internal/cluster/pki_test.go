package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func newAuthority(t *testing.T) *authority {
	t.Helper()
	dir := t.TempDir()
	a, err := loadOrCreateAuthority("test", filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func parsePair(t *testing.T, p pair) *x509.Certificate {
	t.Helper()
	loaded, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return loaded.Leaf
}

func verify(t *testing.T, a *authority, cert *x509.Certificate, name string, usage x509.ExtKeyUsage) error {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.pem) {
		t.Fatal("the authority has no certificate")
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func TestServerCertificate(t *testing.T) {
	a := newAuthority(t)
	p, err := a.server("kubernetes.default")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"127.0.0.1", serviceIP, "localhost", "kubernetes.default"} {
		if err := verify(t, a, parsePair(t, p), name, x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
}

func TestClientCertificate(t *testing.T) {
	a := newAuthority(t)
	p, err := a.client("someone", "g1", "g2")
	if err != nil {
		t.Fatal(err)
	}
	cert := parsePair(t, p)
	if err := verify(t, a, cert, "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
	if err := verify(t, newAuthority(t), cert, "", x509.ExtKeyUsageClientAuth); err == nil {
		t.Error("another cluster's authority accepts the certificate")
	}
	if cert.Subject.CommonName != "someone" || !reflect.DeepEqual(cert.Subject.Organization, []string{"g1", "g2"}) {
		t.Errorf("the subject is %s", cert.Subject)
	}
}

func TestCredentialsAreKept(t *testing.T) {
	l := layout(t.TempDir())
	lock, err := l.claim()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	read := func(names ...string) (content []byte) {
		if err := l.credentials("https://127.0.0.1:1"); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			one, err := os.ReadFile(l.pki(name))
			if err != nil {
				t.Fatal(err)
			}
			content = append(content, one...)
		}
		return content
	}
	kept := []string{"ca.crt", "ca.key", "sa.key", "etcd-ca.crt", "etcd-ca.key"}
	if !bytes.Equal(read(kept...), read(kept...)) {
		t.Error("a second start replaces an authority or the key of tokens")
	}
}

func TestPrintKubeconfig(t *testing.T) {
	l := layout(t.TempDir())
	var out bytes.Buffer
	o := KubeconfigOptions{Dir: string(l), User: "system:node:n1", Groups: []string{"system:nodes"}}
	if err := PrintKubeconfig(o, &out); err == nil || !strings.Contains(err.Error(), "holds no cluster: start one with") {
		t.Fatalf("without a cluster: %v", err)
	}
	lock, err := l.claim()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := l.credentials("https://127.0.0.1:1234"); err != nil {
		t.Fatal(err)
	}
	if err := PrintKubeconfig(o, &out); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	cert := parsePair(t, pair{config.CertData, config.KeyData})
	if config.Host != "https://127.0.0.1:1234" || cert.Subject.String() != "CN=system:node:n1,O=system:nodes" {
		t.Errorf("got %s at %s", cert.Subject, config.Host)
	}
}
