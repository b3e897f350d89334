package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReserve(t *testing.T) {
	p, release, err := reserveAll(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	seen := map[int]bool{}
	for component, port := range p {
		if port == 0 || seen[port] {
			t.Errorf("%s has port %d of %v", component, port, p)
		}
		seen[port] = true
	}
	// Held against everybody but the component that shares the port.
	address := fmt.Sprintf("%s:%d", loopback, p[APIServer])
	if listener, err := net.Listen("tcp", address); err == nil {
		_ = listener.Close()
		t.Error("somebody else gets a reserved port")
	}
	if _, err := reserve(p[APIServer]); err == nil || !strings.Contains(err.Error(), "is not free") {
		t.Errorf("asking for a reserved port: %v", err)
	}
	share := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
	}}
	listener, err := share.Listen(context.Background(), "tcp", address)
	if err != nil {
		t.Fatalf("the component does not get its port: %v", err)
	}
	if err := dialable(p[APIServer])(context.Background()); err != nil {
		t.Errorf("connecting to the component: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if err := dialable(p[APIServer])(context.Background()); err == nil {
		t.Error("a reservation alone takes connections")
	}
}
