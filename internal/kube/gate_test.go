package kube

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// body notes that it was closed, as a RoundTripper has to.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

func TestGate(t *testing.T) {
	for _, c := range []struct {
		method string
		read   bool
	}{
		{http.MethodGet, true}, {http.MethodHead, true}, {http.MethodOptions, true},
		{http.MethodPost, false}, {http.MethodPut, false}, {http.MethodPatch, false}, {http.MethodDelete, false},
		{"ANYTHING-NEW", false},
	} {
		for _, open := range []bool{true, false} {
			sent := false
			g := gate{open: func() bool { return open }, next: transport(func(*http.Request) (*http.Response, error) {
				sent = true
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})}
			content := &body{Reader: strings.NewReader("{}")}
			req := httptest.NewRequest(c.method, "https://api/api/v1/pods/a", content)
			res, err := g.RoundTrip(req)
			if want := c.read || open; sent != want || (err == nil) != want {
				t.Errorf("%s with the gate open=%v: sent=%v, %v", c.method, open, sent, err)
			}
			if res != nil {
				_ = res.Body.Close()
				continue
			}
			if !errors.Is(err, ErrNotLeader) || !strings.Contains(err.Error(), c.method+" /api/v1/pods/a") {
				t.Errorf("%s: %v, want ErrNotLeader that names the request", c.method, err)
			}
			if !content.closed {
				t.Errorf("%s: the body of the refused request was not closed", c.method)
			}
		}
	}
}

// The gate stands on every lane but that of leases, whatever client is made of
// it, and closes in the middle of the work.
func TestClientsWriteOnlyWhileTheyMay(t *testing.T) {
	var writes atomic.Int32
	srv := apiServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			writes.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"b"}}`)
	})
	var may atomic.Bool
	clients, err := NewClients(t.Context(), Config{Kubeconfig: kubeconfig(t, srv.URL), UserAgent: "test", MayWrite: may.Load})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]lane{"work": {t, clients.Work}, "events": {t, clients.Events}} {
		may.Store(true)
		if err := c.write(); err != nil {
			t.Errorf("%s: a write failed while it was allowed: %v", name, err)
		}
		may.Store(false)
		before := writes.Load()
		if err := c.write(); !errors.Is(err, ErrNotLeader) {
			t.Errorf("%s: a write after the lease ran out gives %v, want ErrNotLeader", name, err)
		}
		if writes.Load() != before {
			t.Errorf("%s: the write was sent", name)
		}
		if err := c.read(); err != nil {
			t.Errorf("%s: a read failed: %v", name, err)
		}
	}
	if err := (lane{t, clients.Lease}).write(); err != nil {
		t.Errorf("the lease lane was closed: %v", err)
	}
}

// lane is one client in use.
type lane struct {
	t      *testing.T
	client kubernetes.Interface
}

func (l lane) write() error {
	_, err := l.client.CoreV1().ConfigMaps("b").Create(l.t.Context(), &v1.ConfigMap{}, metav1.CreateOptions{})
	return err
}

func (l lane) read() error {
	_, err := l.client.CoreV1().ConfigMaps("b").Get(l.t.Context(), "a", metav1.GetOptions{})
	return err
}

// kubeconfig points at a server that wants no credentials.
func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	cfg := api.NewConfig()
	cfg.Clusters["c"] = &api.Cluster{Server: url}
	cfg.Contexts["c"] = &api.Context{Cluster: "c"}
	cfg.CurrentContext = "c"
	path := t.TempDir() + "/kubeconfig"
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	return path
}
