// Package server serves gRPC and HTTP on unix sockets, and can take the gRPC
// socket away for a while.
package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxSocketPath is what fits into the address of a unix socket.
const maxSocketPath = 107

// ParseEndpoint gives the path of an endpoint such as unix:///run/csi.sock.
func ParseEndpoint(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix:")
	if !ok {
		return "", fmt.Errorf("endpoint %q is not of the form unix:///path/to.sock", endpoint)
	}
	path = strings.TrimPrefix(path, "//")
	if !filepath.IsAbs(path) || strings.HasSuffix(path, "/") {
		return "", fmt.Errorf("endpoint %q has no absolute path: write unix:///path/to.sock", endpoint)
	}
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("endpoint %q is longer than the %d bytes that a socket's path may have", endpoint, maxSocketPath)
	}
	return filepath.Clean(path), nil
}

// listen makes the socket. One that nobody listens to any more is replaced;
// anything else in its place is left alone.
func listen(path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("looking for a socket at %s: %w", path, err)
	case info.Mode()&os.ModeSocket == 0:
		return nil, fmt.Errorf("%s exists and is no socket: remove it, or choose another path", path)
	default:
		if connection, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = connection.Close() // it only had to be there
			return nil, fmt.Errorf("%s is served by another process: stop it, or choose another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("removing the dead socket %s: %w", path, err)
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening at %s: %w", path, err)
	}
	return listener, nil
}
