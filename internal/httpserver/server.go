// Package httpserver serves health, metrics and debug pages on one port.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// shutdownGrace bounds how long requests under way may take at the end.
const shutdownGrace = 5 * time.Second

// Server is an HTTP server that lives as long as a context.
type Server struct {
	listener net.Listener
	mux      *http.ServeMux
}

// Listen opens address, "host:port" or ":port".
func Listen(ctx context.Context, address string) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on --http-endpoint %s: %w", address, err)
	}
	return &Server{listener: l, mux: http.NewServeMux()}, nil
}

// Addr is the address that is listened on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Handle serves pattern to everyone.
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// HandleLocal serves pattern to clients on this host only: debug pages name
// volumes and pods.
func (s *Server) HandleLocal(pattern string, h http.Handler) {
	s.mux.Handle(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			http.Error(w, "debug pages are served on the loopback interface only", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	}))
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{Handler: s.mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(s.listener) }()
	klog.FromContext(ctx).Info("Serves HTTP", "address", s.Addr().String())
	select {
	case err := <-failed:
		return fmt.Errorf("serving HTTP: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err := srv.Shutdown(stop)
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
