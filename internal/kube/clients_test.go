package kube

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiServer answers /version with or without the header of API priority and
// fairness, and the rest with h.
func apiServer(t *testing.T, fair bool, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) {
		if fair {
			w.Header().Set(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID, "uid")
		}
		_, _ = w.Write([]byte("{}"))
	})
	if h != nil {
		mux.HandleFunc("/", h)
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func TestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		fair  bool
		cfg   Config
		qps   float32
		burst int
	}{
		"priority and fairness":      {fair: true, qps: -1},
		"none":                       {qps: fallbackQPS, burst: fallbackBurst},
		"asked for":                  {cfg: Config{QPS: 7, Burst: 9}, qps: 7, burst: 9},
		"asked for in spite of fair": {fair: true, cfg: Config{QPS: 7, Burst: 9}, qps: 7, burst: 9},
	} {
		t.Run(name, func(t *testing.T) {
			srv := apiServer(t, c.fair, nil)
			base := &rest.Config{Host: srv.URL}
			if err := limit(t.Context(), c.cfg, base); err != nil {
				t.Fatal(err)
			}
			if base.QPS != c.qps || base.Burst != c.burst {
				t.Errorf("limit() gives %v and %d, want %v and %d", base.QPS, base.Burst, c.qps, c.burst)
			}
		})
	}
}

func TestLimitTellsWhatIsWrong(t *testing.T) {
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer refuses.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, c := range map[string]struct{ url, want string }{
		"refused": {refuses.URL, "401"},
		"gone":    {gone.URL, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			err := limit(t.Context(), Config{}, &rest.Config{Host: c.url})
			if err == nil || !strings.Contains(err.Error(), c.url) || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "check the network and the credentials") {
				t.Errorf("limit() = %v, want one that names %s, %q and what to check", err, c.url, c.want)
			}
		})
	}
}

func TestLanes(t *testing.T) {
	agents := make(chan string, 10)
	srv := apiServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		agents <- r.UserAgent()
		w.WriteHeader(http.StatusNotFound)
	})
	clients, err := NewClients(t.Context(), Config{Kubeconfig: kubeconfig(t, srv.URL), UserAgent: "ha-sidecar/1", LeaseTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for agent, client := range map[string]kubernetes.Interface{
		"ha-sidecar/1/lease": clients.Lease, "ha-sidecar/1": clients.Work, "ha-sidecar/1/events": clients.Events,
	} {
		_ = lane{t, client}.read()
		if got := <-agents; !strings.HasSuffix(got, agent) {
			t.Errorf("user agent %q, want one that ends with %q", got, agent)
		}
	}
	if l := clients.Lease.CoreV1().RESTClient().GetRateLimiter(); l != nil {
		t.Error("the lease lane is throttled")
	}
	if l := clients.Work.CoreV1().RESTClient().GetRateLimiter(); l != nil {
		t.Error("writes are throttled although the server has priority and fairness")
	}
	if l := clients.Events.CoreV1().RESTClient().GetRateLimiter(); l == nil || l.QPS() != fallbackQPS {
		t.Error("events are not throttled")
	}
}

// Without a limit of its own capacity is work like any other; with one it alone is
// held to it.
func TestCapacityLane(t *testing.T) {
	agents := make(chan string, 1)
	srv := apiServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		agents <- r.UserAgent()
		w.WriteHeader(http.StatusNotFound)
	})
	connect := func(cfg Config) *Clients {
		t.Helper()
		cfg.Kubeconfig, cfg.UserAgent = kubeconfig(t, srv.URL), "ha-sidecar/1"
		cfg.MayWrite = func() bool { return false }
		clients, err := NewClients(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return clients
	}
	if clients := connect(Config{}); clients.Capacity != clients.Work {
		t.Error("without a limit there is a lane of its own")
	}
	clients := connect(Config{CapacityQPS: 0.5, CapacityBurst: 3})
	limit := clients.Capacity.StorageV1().RESTClient().GetRateLimiter()
	if limit == nil || limit.QPS() != 0.5 {
		t.Fatalf("the limit is %v, want 0.5", limit)
	}
	for i := range 3 {
		if !limit.TryAccept() {
			t.Errorf("only %d requests at once, want 3", i)
		}
	}
	if limit.TryAccept() {
		t.Error("a fourth request at once")
	}
	if l := clients.Work.StorageV1().RESTClient().GetRateLimiter(); l != nil {
		t.Error("the work is limited too")
	}
	// Writes are held back without the lease, as on the other lanes.
	if err := (lane{t, clients.Capacity}).write(); !errors.Is(err, ErrNotLeader) {
		t.Errorf("write() = %v", err)
	}
	_ = lane{t, connect(Config{CapacityQPS: 1, CapacityBurst: 1}).Capacity}.read()
	if got := <-agents; !strings.HasSuffix(got, "ha-sidecar/1/capacity") {
		t.Errorf("user agent %q", got)
	}
}

// A renewal that hangs must leave time for another before the deadline.
func TestLeaseLaneGivesUp(t *testing.T) {
	hold := make(chan struct{})
	srv := apiServer(t, true, func(http.ResponseWriter, *http.Request) { <-hold })
	defer close(hold)
	clients, err := NewClients(t.Context(), Config{Kubeconfig: kubeconfig(t, srv.URL), LeaseTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := (lane{t, clients.Lease}).read(); err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read() = %v, want a timeout", err)
	}
}

// TestMaster: the server that is named goes before that of the kubeconfig, and
// needs none.
func TestMaster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", "")
	const master = "http://127.0.0.1:1"
	for name, path := range map[string]string{"alone": "", "beside a kubeconfig": kubeconfig(t, "http://127.0.0.1:2")} {
		if cfg, err := restConfig(master, path); err != nil || cfg.Host != master {
			t.Errorf("%s: %+v, %v, want the host %s", name, cfg, err, master)
		}
	}
}

func TestRESTConfigTellsWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, c := range map[string]struct{ path, want string }{
		"outside a cluster": {"", "outside a cluster give --kubeconfig"},
		"missing":           {filepath.Join(dir, "none"), "reading --kubeconfig"},
		"broken":            {broken, "reading --kubeconfig " + broken},
		"empty":             {empty, "reading --kubeconfig " + empty},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewClients(t.Context(), Config{Kubeconfig: c.path})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("NewClients() = %v, want one that says %q", err, c.want)
			}
		})
	}
}
