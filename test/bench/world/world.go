// Package world is what the benches share of the worlds that they measure in.
package world

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// sideBySide is how many requests a bench has under way at once.
const sideBySide = 32

// Within does something in a directory of its own, with a short name, since unix
// sockets have short names. Its folder logs is copied to that of the caller, and
// all of it removed.
func Within(logs string, do func(dir string) error) error {
	dir, err := os.MkdirTemp("", "ha-bench-")
	if err != nil {
		return err
	}
	err = do(dir)
	return errors.Join(err, keep(filepath.Join(dir, "logs"), logs), os.RemoveAll(dir))
}

// keep copies a folder, if there is one, in the place of another.
func keep(from, to string) error {
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from)))
}

// Admin makes a client that has no limit of its own and speaks protobuf. Without
// an agent it is called as the program is.
func Admin(config *rest.Config, agent string) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.UserAgent = -1, agent
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(config)
}

// Each does something n times, side by side, in order of their beginning.
func Each(n int, do func(i int) error) error {
	errs := make([]error, n)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(n, sideBySide) {
		wg.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// Pause waits; the error is the context's.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
