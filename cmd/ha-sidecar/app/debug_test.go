package app

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"

	"github.com/ha-sidecar/ha-sidecar/internal/httpserver"
	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/internal/leader"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
)

// built makes the controllers that the flags enable, on a driver and a fake API.
func built(t *testing.T, flags ...string) *controllers {
	t.Helper()
	driver := csiclienttest.Start(t, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	client, err := csiclient.New(csiclient.Config{Address: driver.Path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientset()
	leases, err := kube.NewLeaseInformer(api)
	if err != nil {
		t.Fatal(err)
	}
	opts := parse(t, flags...)
	enabled, err := enabledControllers(opts.Controllers)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := build(t.Context(), deps{
		opts: opts, driver: client, clients: &kube.Clients{Work: api, Dynamic: dynamicfake.NewSimpleDynamicClient(scheme.Scheme)}, namespace: "csi", shared: kube.NewInformers(api), leases: leases,
		recorder: record.NewFakeRecorder(10), registry: metrics.NewKubeRegistry(), leader: leads(true),
	}, enabled)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pages serves the debug pages, and returns a function that fetches one.
func pages(t *testing.T, d *debug) func(path string) (int, string) {
	t.Helper()
	srv, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.register(srv)
	registerProfiles(srv)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+srv.Addr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if isJSON := res.Header.Get("Content-Type") == "application/json"; isJSON != json.Valid(body) {
			t.Errorf("%s: content type %s for %q", path, res.Header.Get("Content-Type"), body)
		}
		return res.StatusCode, string(body)
	}
}

func TestDebugPages(t *testing.T) {
	d := &debug{elect: &election{}}
	get := pages(t, d)
	want := func(code int, path, text string) {
		t.Helper()
		if gotCode, body := get(path); gotCode != code || !strings.Contains(body, text) {
			t.Errorf("%s: %d %q, want %d and %q", path, gotCode, body, code, text)
		}
	}
	for _, path := range []string{"/debug/failover", "/debug/health", "/debug/attach", "/debug/provisioner"} {
		want(http.StatusServiceUnavailable, path, "not made yet")
	}
	want(http.StatusOK, "/debug/leader", "waits: ")
	d.elect.set(leader.None{})
	want(http.StatusOK, "/debug/leader", "leads")

	d.built.Store(built(t, "--controllers=attacher"))
	want(http.StatusNotFound, "/debug/failover", "--failover-mode")
	want(http.StatusNotFound, "/debug/health", "--controllers")
	want(http.StatusNotFound, "/debug/provisioner", "--controllers")
	want(http.StatusOK, "/debug/attach", `"content": []`)
	want(http.StatusOK, "/debug/attach?volume=v", `"holds": false`)

	d.built.Store(built(t))
	want(http.StatusOK, "/debug/failover", `"leads": true`)
	want(http.StatusOK, "/debug/failover", `"brake": {`)
	want(http.StatusServiceUnavailable, "/debug/failover?pod=a/b", "failover is not running")
	want(http.StatusOK, "/debug/health", `"content": []`)
	want(http.StatusOK, "/debug/provisioner", `"opened": false`)
	want(http.StatusOK, "/debug/provisioner?claim=a/b", `"begun": []`)
	d.elect.set(leads(false))
	want(http.StatusOK, "/debug/health", `"leads": false`)

	d.built.Store(built(t, "--failover-mode=off"))
	want(http.StatusNotFound, "/debug/failover", "--failover-mode")
}

func TestProfiles(t *testing.T) {
	get := pages(t, &debug{elect: &election{}})
	for path, want := range map[string]string{
		"": "full goroutine stack dump", "heap?debug=1": "heap profile:", "goroutine?debug=1": "goroutine profile:", "cmdline": "app.test", "symbol": "num_symbols",
	} {
		if code, body := get(profiles + path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want %q", path, code, body, want)
		}
	}
}

func TestMetricsDoNotTakeADebugPage(t *testing.T) {
	for _, path := range []string{"/debug/leader", "/debug/failover", "/debug/health", "/debug/attach", "/debug/provisioner"} {
		o := parse(t)
		o.MetricsPath = path
		if len(o.Validate()) == 0 {
			t.Errorf("--metrics-path=%s passes", path)
		}
	}
}
