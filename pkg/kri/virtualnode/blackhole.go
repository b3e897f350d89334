package virtualnode

import (
	"context"
	"net"
	"sync"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// DialFunc is the type of rest.Config.Dial.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer wraps a dial function so that a partition holds back all traffic, in
// both directions, of new and of open connections. As with TCP, what was held
// back arrives when the partition ends, unless the connection was given up.
func (f *Faults) Dialer(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := f.Hang(ctx, nodectl.Partition); err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &gatedConn{Conn: conn, faults: f, closed: make(chan struct{})}, nil
	}
}

type gatedConn struct {
	net.Conn
	faults *Faults
	once   sync.Once
	closed chan struct{}
}

func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if gateErr := c.pass(); gateErr != nil {
		return 0, gateErr
	}
	return n, err
}

func (c *gatedConn) Write(b []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close also ends reads and writes that a partition holds back.
func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// pass waits for the end of a partition.
func (c *gatedConn) pass() error {
	for {
		released := c.faults.released(nodectl.Partition)
		if released == nil {
			return nil
		}
		select {
		case <-released:
		case <-c.closed:
			return net.ErrClosed
		}
	}
}
