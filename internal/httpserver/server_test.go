package httpserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func ask(h http.Handler, path, remote string) (int, string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	if remote != "" {
		r.RemoteAddr = remote
	}
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestChecks(t *testing.T) {
	ok := func() error { return nil }
	bad := func() error { return errors.New("no socket; start the driver") }
	for name, c := range map[string]struct {
		checks []Check
		query  string
		code   int
		body   string
	}{
		"none":             {code: 200, body: "ok\n"},
		"all pass":         {checks: []Check{{"a", ok}, {"b", ok}}, code: 200, body: "ok\n"},
		"all pass, listed": {checks: []Check{{"b", ok}, {"a", ok}}, query: "?verbose", code: 200, body: "[+]b ok\n[+]a ok\n"},
		"one fails":        {checks: []Check{{"a", ok}, {"driver", bad}}, code: 503, body: "[-]driver: no socket; start the driver\n"},
		"all fail":         {checks: []Check{{"a", bad}, {"b", bad}}, query: "?verbose", code: 503, body: "[-]a: no socket; start the driver\n[-]b: no socket; start the driver\n"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := ask(Checks(c.checks...), "/readyz"+c.query, "")
			if code != c.code || body != c.body {
				t.Errorf("%d %q, want %d %q", code, body, c.code, c.body)
			}
		})
	}
}

func TestChecksAreAskedEachTime(t *testing.T) {
	n := 0
	h := Checks(Check{"a", func() error { n++; return nil }})
	ask(h, "/", "")
	ask(h, "/", "")
	if n != 2 {
		t.Errorf("asked %d times, want 2", n)
	}
}

func listen(t *testing.T) *Server {
	t.Helper()
	s, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDebugPagesAreForThisHost(t *testing.T) {
	s := listen(t)
	defer func() { _ = s.listener.Close() }()
	s.HandleLocal("/debug/x", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("pods")) }))
	for remote, want := range map[string]int{
		"127.0.0.1:1": 200, "127.8.8.8:1": 200, "[::1]:1": 200, "[::ffff:127.0.0.1]:1": 200,
		"10.0.0.1:1": 403, "[fd00::1]:1": 403, "[fe80::1%eth0]:1": 403, "0.0.0.0:1": 403, "localhost:1": 403, "": 403, "@": 403,
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/x", http.NoBody)
		r.RemoteAddr = remote
		// What a client says of itself does not count.
		r.Header.Set("X-Forwarded-For", "127.0.0.1")
		w := httptest.NewRecorder()
		s.mux.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("from %q: %d, want %d", remote, w.Code, want)
		}
		if want != 200 && strings.Contains(w.Body.String(), "pods") {
			t.Errorf("from %q: the page was shown", remote)
		}
	}
}

func get(url string) (int, string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url) // loopback
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func TestRunServesAndFinishesWhatIsUnderWay(t *testing.T) {
	s := listen(t)
	entered, goOn := make(chan struct{}), make(chan struct{})
	s.Handle("/slow", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-goOn
		_, _ = w.Write([]byte("done"))
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	url := "http://" + s.Addr().String()
	answer := make(chan string, 1)
	go func() { _, body, _ := get(url + "/slow"); answer <- body }()
	<-entered
	cancel()
	// New ones are refused while the old one ends.
	for {
		if _, _, err := get(url + "/none"); err != nil {
			break
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("Run() = %v while a request was under way", err)
	default:
	}
	close(goOn)
	if body := <-answer; body != "done" {
		t.Errorf("the request under way got %q, want done", body)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func TestRunTellsThatItCannotServe(t *testing.T) {
	s := listen(t)
	_ = s.listener.Close()
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "serving HTTP") {
		t.Errorf("Run() = %v, want what went wrong", err)
	}
}

func TestListenTellsWhatIsWrong(t *testing.T) {
	s := listen(t)
	defer func() { _ = s.listener.Close() }()
	for _, address := range []string{"nonsense", ":99999999", s.Addr().String()} {
		if _, err := Listen(t.Context(), address); err == nil || !strings.Contains(err.Error(), "listening on --http-endpoint "+address) {
			t.Errorf("Listen(%q) = %v, want the flag and the address", address, err)
		}
	}
	if shutdownGrace > 10*time.Second {
		t.Error("the grace is longer than a drain should be")
	}
}
