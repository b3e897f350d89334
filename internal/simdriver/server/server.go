package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Config of a Server.
type Config struct {
	// Endpoint is where gRPC is served, as a URL; Control is where Handler is,
	// "" nowhere.
	Endpoint, Control string
	// Register adds the services to a gRPC server; it is called again after
	// each drop of the socket.
	Register func(*grpc.Server)
	// Interceptors see every call, in this order, first of all.
	Interceptors []grpc.UnaryServerInterceptor
	Handler      http.Handler
	Clock        clock.Clock
}

// Server serves the two sockets of a process.
type Server struct {
	cfg           Config
	path, control string
	ready         chan struct{}
	drops         chan drop
}

type drop struct {
	away time.Duration
	gone chan struct{} // closed when the socket is gone
}

// New checks the endpoints; it does not listen yet.
func New(cfg Config) (*Server, error) {
	if cfg.Register == nil || len(cfg.Interceptors) == 0 || cfg.Clock == nil {
		return nil, errors.New("a server needs services, an interceptor and a clock")
	}
	s := &Server{cfg: cfg, ready: make(chan struct{}), drops: make(chan drop)}
	var err error
	if s.path, err = ParseEndpoint(cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.Control == "" {
		return s, nil
	}
	if s.control, err = ParseEndpoint(cfg.Control); err != nil {
		return nil, fmt.Errorf("control %w", err)
	}
	if s.control == s.path {
		return nil, fmt.Errorf("endpoint and control are both %s", s.path)
	}
	return s, nil
}

// Ready is closed when both sockets are there.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Drop takes the gRPC socket away for so long, with all connections and calls in
// flight. It returns when the socket is gone.
func (s *Server) Drop(ctx context.Context, duration time.Duration) error {
	asked := drop{away: duration, gone: make(chan struct{})}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case s.drops <- asked:
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-asked.gone:
		return nil
	}
}

// Run serves until ctx ends, and waits for the calls in flight.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(s.path)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if s.control != "" {
		control, err := listen(s.control)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		s.serveControl(ctx, group, control)
	}
	klog.FromContext(ctx).Info("Serving", "endpoint", s.path, "control", s.control)
	close(s.ready)
	group.Go(func() error { return s.serveCSI(ctx, listener) })
	return group.Wait()
}

func (s *Server) serveControl(ctx context.Context, group *errgroup.Group, listener net.Listener) {
	server := &http.Server{
		Handler:           s.cfg.Handler,
		ReadHeaderTimeout: 10 * time.Second,
		// So that a request that waits for something ends when the process does.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving the control socket: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return server.Shutdown(ending)
	})
}

// serveCSI serves gRPC from one drop of the socket to the next.
func (s *Server) serveCSI(ctx context.Context, listener net.Listener) error {
	for {
		away, again := s.serveUntilDrop(ctx, listener)
		if again != nil || ctx.Err() != nil {
			return again
		}
		klog.FromContext(ctx).Info("Dropped the socket", "path", s.path, "duration", away)
		timer := s.cfg.Clock.NewTimer(away)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		var err error
		if listener, err = listen(s.path); err != nil {
			return fmt.Errorf("serving again after a drop: %w", err)
		}
	}
}

// serveUntilDrop serves until ctx ends or a drop is asked for, and tells of how
// long.
func (s *Server) serveUntilDrop(ctx context.Context, listener net.Listener) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(append(slices.Clone(s.cfg.Interceptors), logCalls(klog.FromContext(ctx)))...))
	s.cfg.Register(server)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	var asked drop
	select {
	case <-ctx.Done():
	case asked = <-s.drops:
		defer close(asked.gone)
	case err := <-failed:
		return 0, fmt.Errorf("serving %s: %w", s.path, err)
	}
	// Closes the listener, which removes the socket, and all connections, which
	// ends the contexts of the calls.
	server.Stop()
	if err := <-failed; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return 0, fmt.Errorf("serving %s: %w", s.path, err)
	}
	return asked.away, nil
}

// logCalls tells of failed calls at verbosity 2 and of all at 5. Requests are
// not shown: they may carry secrets.
func logCalls(logger klog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		logger := logger.WithValues("method", info.FullMethod)
		if named, ok := request.(interface{ GetVolumeId() string }); ok {
			logger = logger.WithValues("volume", named.GetVolumeId())
		}
		if named, ok := request.(interface{ GetNodeId() string }); ok {
			logger = logger.WithValues("node", named.GetNodeId())
		}
		response, err := handle(klog.NewContext(ctx, logger), request)
		if err != nil {
			logger.V(2).Info("Call failed", "err", err)
		} else {
			logger.V(5).Info("Call succeeded")
		}
		return response, err
	}
}
