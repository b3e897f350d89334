package csiclienttest

import (
	"net"
	"sync"
	"testing"
)

// Mute listens on a unix socket, accepts connections and says first, then
// nothing more. It returns the path.
func Mute(t testing.TB, first string) string {
	t.Helper()
	path := SocketPath(t)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatalf("Listening on %s: %v", path, err)
	}
	var serving sync.WaitGroup
	done := make(chan struct{})
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Write([]byte(first))
				<-done
			})
		}
	})
	t.Cleanup(func() {
		close(done)
		_ = listener.Close()
		serving.Wait()
	})
	return path
}
