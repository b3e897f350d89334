package cluster

import (
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// reservation holds a port from the moment it was chosen until the cluster
// stops: the socket is bound, never listens, and lets the component that is
// started for it bind the same port by SO_REUSEPORT. Nobody else can get the
// port in between, so that any number of clusters may start at once.
type reservation struct {
	port int
	fd   int
}

// reserve takes the port asked for, or a free one for 0.
func reserve(port int) (*reservation, error) {
	if port != 0 {
		// SO_REUSEPORT would share the port with another cluster of this user; to
		// listen without it tells whether the port is free.
		probe, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("port %d is not free: %w; name another one, or none", port, err)
		}
		_ = probe.Close()
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	r := &reservation{port: port, fd: fd}
	if err := r.bind(); err != nil {
		r.release()
		return nil, fmt.Errorf("reserving port %d: %w", port, err)
	}
	return r, nil
}

func (r *reservation) bind() error {
	if err := unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(r.fd, &unix.SockaddrInet4{Port: r.port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	name, err := unix.Getsockname(r.fd)
	if err != nil {
		return err
	}
	r.port = name.(*unix.SockaddrInet4).Port
	return nil
}

func (r *reservation) release() { _ = unix.Close(r.fd) }

// reserveAll reserves a port for every component.
func reserveAll(o Options) (p ports, release func(), err error) {
	wanted := map[string]int{APIServer: o.Port, Etcd: o.EtcdPort}
	var held []*reservation
	release = func() {
		for _, r := range held {
			r.release()
		}
	}
	p = ports{}
	for _, component := range Components {
		r, err := reserve(wanted[component])
		if err != nil {
			release()
			return nil, nil, fmt.Errorf("choosing the port of %s: %w", component, err)
		}
		held = append(held, r)
		p[component] = r.port
	}
	return p, release, nil
}
