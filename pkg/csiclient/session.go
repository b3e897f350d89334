package csiclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Keep-alive of the transport. A gRPC server cuts clients off that ping more
// often than every five minutes (its default enforcement), which would break
// calls in flight; so this only catches a peer that has been dead for long, and
// the probes of Run do the rest.
const (
	keepAliveTime    = 5*time.Minute + 30*time.Second
	keepAliveTimeout = 20 * time.Second
)

var errSessionOver = errors.New("the connection is gone; a new one is being opened")

// session is one connection to one incarnation of the driver.
type session struct {
	conn       *grpc.ClientConn
	identity   csi.IdentityClient
	controller csi.ControllerClient
	node       csi.NodeClient
	dialer     *onceDialer
	// socket is the file that was dialled. If the path leads to another one
	// later, a newer driver listens there.
	socket os.FileInfo

	// Filled while the driver introduces itself, not changed after.
	name string
	caps Capabilities

	mu       sync.Mutex
	inFlight int
	retired  bool
}

// onceDialer dials a single time, so that the connection of a session is never
// silently replaced by one to a driver that has not been looked at.
type onceDialer struct {
	path string

	mu   sync.Mutex
	used bool
	conn net.Conn
	err  error
}

func (d *onceDialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used {
		return nil, errSessionOver
	}
	d.used = true
	d.conn, d.err = new(net.Dialer).DialContext(ctx, "unix", d.path)
	return d.conn, d.err
}

// failure is the error of the one dial.
func (d *onceDialer) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// sever closes the connection under gRPC's feet.
func (d *onceDialer) sever() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = d.conn.Close() // gRPC closes it too; only one of both matters.
	}
}

// newSession prepares a session; the first call connects.
func (c *Client) newSession(socket os.FileInfo) (*session, error) {
	dialer := &onceDialer{path: c.path}
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithContextDialer(dialer.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: c.cfg.ConnectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAliveTime, Timeout: keepAliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.cfg.MaxReceiveBytes)),
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithUnaryInterceptor(c.intercept),
	)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to %s: %w", c.path, err)
	}
	return &session{
		conn:       conn,
		identity:   csi.NewIdentityClient(conn),
		controller: csi.NewControllerClient(conn),
		node:       csi.NewNodeClient(conn),
		dialer:     dialer,
		socket:     socket,
	}, nil
}

// waitLost returns when the connection is no longer ready, or when ctx ends.
func (s *session) waitLost(ctx context.Context) {
	for s.conn.GetState() == connectivity.Ready {
		if !s.conn.WaitForStateChange(ctx, connectivity.Ready) {
			return
		}
	}
}

// replaced reports whether the socket's path leads to another socket now.
func (s *session) replaced(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !os.SameFile(info, s.socket)
}

// hold keeps the connection open until release, even past retire. It fails when
// the session is retired already.
func (s *session) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.inFlight++
	return true
}

func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	s.closeIfDone()
}

// retire lets calls in flight come to their end, which a driver that shuts down
// in good order answers still, and closes then.
func (s *session) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.closeIfDone()
}

func (s *session) closeIfDone() {
	if s.retired && s.inFlight == 0 {
		_ = s.conn.Close() // fails only if it was closed before.
	}
}
