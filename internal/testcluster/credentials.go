package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// tokenSeconds is longer than any test; the API server bounds it too.
const tokenSeconds = 24 * 60 * 60

// NodeKubeconfig writes a kubeconfig that authenticates as a node, which need
// not exist, and returns its path.
func (c *Cluster) NodeKubeconfig(ctx context.Context, node string) (string, error) {
	content, err := exec.CommandContext(ctx, c.binary, "kubeconfig", "--dir", c.dir, "--node", node).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("making a kubeconfig for node %s: %w", node, err)
	}
	return c.writeKubeconfig("node-"+node, content)
}

// ServiceAccountKubeconfig writes a kubeconfig that authenticates as a service
// account, which must exist, by a token of its own, and returns its path.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("requesting a token for service account %s/%s: %w", namespace, name, err)
	}
	const cluster = "localcluster"
	config := api.NewConfig()
	config.Clusters[cluster] = &api.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	config.AuthInfos[name] = &api.AuthInfo{Token: token.Status.Token}
	config.Contexts[cluster] = &api.Context{Cluster: cluster, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = cluster
	content, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("encoding the kubeconfig of service account %s/%s: %w", namespace, name, err)
	}
	return c.writeKubeconfig("serviceaccount-"+namespace+"-"+name, content)
}

// writeKubeconfig puts credentials into the cluster's directory, so that they go
// with it.
func (c *Cluster) writeKubeconfig(name string, content []byte) (string, error) {
	path := filepath.Join(c.dir, name+".kubeconfig")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return path, nil
}
