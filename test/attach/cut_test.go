package attach

import (
	"net"
	"sync"
)

// cut is a TCP connection to the API server that can be cut.
type cut struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	conns []net.Conn
	// passing is closed unless the cut is made; done when all is over.
	passing, done chan struct{}
	wg            sync.WaitGroup
}

func newCut(target string) (*cut, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cut{listener: listener, target: target, passing: make(chan struct{}), done: make(chan struct{})}
	close(c.passing)
	c.wg.Go(c.accept)
	return c, nil
}

func (c *cut) accept() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", c.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		c.mu.Lock()
		c.conns = append(c.conns, near, far)
		c.mu.Unlock()
		c.wg.Go(func() { c.carry(near, far) })
		c.wg.Go(func() { c.carry(far, near) })
	}
}

func (c *cut) carry(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		c.mu.Lock()
		passing := c.passing
		c.mu.Unlock()
		select {
		case <-passing:
		case <-c.done:
			return
		}
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// freeze lets nothing through any more, in neither direction, and tells nobody:
// connections stay, and new ones are taken.
func (c *cut) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passing = make(chan struct{})
}

func (c *cut) close() {
	_ = c.listener.Close()
	close(c.done)
	c.mu.Lock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}
