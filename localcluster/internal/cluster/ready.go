package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	probeInterval = 50 * time.Millisecond
	probeTimeout  = 5 * time.Second
)

// probe answers nil once what it looks at is there.
type probe func(context.Context) error

// dialable waits for a port to listen.
func dialable(port int) probe {
	return func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", loopback, port))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// getter makes probes that expect 200 of a URL, asking as the administrator.
func getter(adminFile string) (func(url string) probe, error) {
	config, err := clientcmd.BuildConfigFromFlags("", adminFile)
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's certificate: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: tlsConfig,
		// A connection is not worth keeping between components that start.
		DisableKeepAlives: true,
		TLSNextProto:      map[string]func(string, *tls.Conn) http.RoundTripper{},
	}}
	return func(url string) probe {
		return func(ctx context.Context) error { return get(ctx, client, url) }
	}, nil
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
