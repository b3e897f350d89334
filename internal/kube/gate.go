package kube

import (
	"fmt"
	"net/http"
)

// gate refuses writes once the lease has run out. It stands in the transport,
// so that no code path can forget to ask.
type gate struct {
	next http.RoundTripper
	open func() bool
}

// RoundTrip passes reads always and writes while the gate is open.
func (g gate) RoundTrip(req *http.Request) (*http.Response, error) {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return g.next.RoundTrip(req)
	}
	if !g.open() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, ErrNotLeader)
	}
	return g.next.RoundTrip(req)
}
