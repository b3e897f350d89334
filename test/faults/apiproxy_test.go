package faults

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// apiProxy stands between ha-sidecar and the API server. The token of whoever
// asks goes through, so that roles count as ever.
type apiProxy struct {
	trap     *trap
	upstream *url.URL
	through  *httputil.ReverseProxy
	server   *httptest.Server
}

func startAPIProxy(t *trap, cluster *rest.Config) (*apiProxy, error) {
	upstream, err := url.Parse(cluster.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address: %w", err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(cluster))
	if err != nil {
		return nil, err
	}
	p := &apiProxy{trap: t, upstream: upstream}
	p.through = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	// HTTP/1.1: there a reply with a length is complete before its handler returns.
	p.server = httptest.NewTLSServer(p)
	return p, nil
}

// kubeconfig is that of the path, with the proxy in place of the API server.
func (p *apiProxy) kubeconfig(path string) (string, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return "", err
	}
	for cluster := range maps.Values(config.Clusters) {
		cluster.Server = p.server.URL
		cluster.CertificateAuthority = ""
		cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	}
	to := filepath.Join(filepath.Dir(path), "proxied-"+filepath.Base(path))
	return to, clientcmd.WriteToFile(*config, to)
}

func (p *apiProxy) stop() {
	p.server.CloseClientConnections()
	p.server.Close()
	if t, ok := p.through.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// ServeHTTP implements http.Handler.
func (p *apiProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	what, writes := writeOf(r)
	if !writes {
		p.through.ServeHTTP(w, r)
		return
	}
	ph := p.trap.enter(what)
	switch ph {
	case "":
		p.through.ServeHTTP(w, r)
		return
	case before:
		p.trap.spring()
		panic(http.ErrAbortHandler)
	}
	// It is carried out whatever becomes of the one who asked.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	held := r.Clone(context.WithoutCancel(r.Context()))
	held.Body = io.NopCloser(bytes.NewReader(body))
	reply := httptest.NewRecorder()
	p.through.ServeHTTP(reply, held)
	if ph == after {
		maps.Copy(w.Header(), reply.Header())
		w.Header().Set("Content-Length", strconv.Itoa(reply.Body.Len()))
		w.WriteHeader(reply.Code)
		_, _ = w.Write(reply.Body.Bytes())
		_ = http.NewResponseController(w).Flush()
	}
	p.trap.spring()
	panic(http.ErrAbortHandler)
}

// writeOf names a request that changes something, such as "patch
// volumeattachments/status". Leases and events are no part of the work.
func writeOf(r *http.Request) (what string, writes bool) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return "", false
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 2 {
		return "", false
	}
	skip := map[string]int{"api": 2, "apis": 3}[parts[0]] // group and version
	parts = parts[min(skip, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) == 0 || parts[0] == "leases" || parts[0] == "events" || strings.HasPrefix(parts[0], "selfsubject") {
		return "", false
	}
	what = strings.ToLower(r.Method) + " " + parts[0]
	if len(parts) > 2 {
		what += "/" + parts[2]
	}
	return what, true
}
