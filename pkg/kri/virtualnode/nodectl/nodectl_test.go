package nodectl

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSocketPath(t *testing.T) {
	for in, want := range map[string]string{"unix:///a/b": "/a/b", "unix:/a/b": "/a/b", "/a/b": "/a/b", "a": "a"} {
		if got := SocketPath(in); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}

func TestParseFault(t *testing.T) {
	for _, f := range append(Lasting(), Crash, PowerOff) {
		if got, err := ParseFault(string(f)); err != nil || got != f {
			t.Errorf("%s: %s, %v", f, got, err)
		}
	}
	if _, err := ParseFault("x"); err == nil || !strings.Contains(err.Error(), "hang-kill, partition, hung-ping, crash, power-off") {
		t.Errorf("x: %v", err)
	}
}

// serve answers on a socket as a node would.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl") // The name of a socket is at most 107 bytes.
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // Ends with Close.
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return New("unix://" + path)
}

func TestRequests(t *testing.T) {
	var got []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.URL.Path)
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"node":"n1","faults":["partition"]}`))
		}
	})
	ctx := t.Context()
	if err := c.Inject(ctx, HangKill); err != nil {
		t.Error(err)
	}
	if err := c.Release(ctx, HangKill, Partition); err != nil {
		t.Error(err)
	}
	if err := c.Release(ctx); err != nil {
		t.Error(err)
	}
	st, err := c.Status(ctx)
	if err != nil || st.Node != "n1" || len(st.Faults) != 1 || st.Faults[0] != Partition {
		t.Errorf("status: %+v, %v", st, err)
	}
	want := "POST /v1/faults/hang-kill, DELETE /v1/faults/hang-kill, DELETE /v1/faults/partition, DELETE /v1/faults, GET /v1/status"
	if all := strings.Join(got, ", "); all != want {
		t.Errorf("requests: %s", all)
	}
}

func TestErrors(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such thing", http.StatusBadRequest) })
	if err := c.Inject(t.Context(), Crash); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("refused: %v", err)
	}
	garbled := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) })
	if _, err := garbled.Status(t.Context()); err == nil {
		t.Error("a garbled answer was taken")
	}
	if err := New("/no/such/socket").Inject(t.Context(), Crash); err == nil {
		t.Error("a node that is not there crashed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ctx); err == nil {
		t.Error("the context is ignored")
	}
}

// TestTheEndIsSuccess: a node that crashes on request answers nothing.
func TestTheEndIsSuccess(t *testing.T) {
	c := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for _, f := range []Fault{Crash, PowerOff} {
		if err := c.Inject(t.Context(), f); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	if err := c.Inject(t.Context(), HangKill); err == nil {
		t.Error("a lost answer passes for success")
	}
}
