package virtualnode

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaults()
		if err := f.Hang(t.Context(), nodectl.HangKill); err != nil {
			t.Errorf("without a fault: %v", err)
		}
		f.Set(nodectl.HangKill)
		f.Set(nodectl.HangKill) // Twice is once.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.Hang(ctx, nodectl.HangKill); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: %v", err)
		}
		if err := f.Hang(t.Context(), nodectl.Partition); err != nil {
			t.Errorf("another fault: %v", err)
		}
		began := time.Now()
		go func() {
			<-time.After(time.Hour)
			f.Release(nodectl.HangKill, nodectl.Partition)
		}()
		if err := f.Hang(t.Context(), nodectl.HangKill); err != nil || time.Since(began) != time.Hour {
			t.Errorf("released: %v after %v", err, time.Since(began))
		}
		if got := f.Active(); len(got) != 0 {
			t.Errorf("active: %v", got)
		}
	})
}

func TestActive(t *testing.T) {
	f := NewFaults()
	f.Set(nodectl.Partition)
	f.Set(nodectl.HangKill)
	if diff := cmp.Diff([]nodectl.Fault{nodectl.HangKill, nodectl.Partition}, f.Active()); diff != "" {
		t.Error(diff)
	}
}

// pipe returns a gated connection and its other end.
func pipe(t *testing.T, f *Faults) (net.Conn, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	conn, err := f.Dialer(func(context.Context, string, string) (net.Conn, error) { return near, nil })(t.Context(), "tcp", "x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = far.Close()
	})
	return conn, far
}

func TestPartitionHoldsBackBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaults()
		conn, far := pipe(t, f)
		f.Set(nodectl.Partition)
		got := make(chan string, 2)
		read := func(c net.Conn) {
			b := make([]byte, 10)
			n, _ := c.Read(b)
			got <- string(b[:n])
		}
		go read(far)
		go read(conn)
		go func() { _, _ = far.Write([]byte("in")) }()
		go func() { _, _ = conn.Write([]byte("out")) }()
		<-time.After(time.Hour)
		synctest.Wait()
		if len(got) != 0 {
			t.Fatalf("%q passed the partition", <-got)
		}
		f.Release(nodectl.Partition)
		a, b := <-got, <-got // What was held back arrives.
		if a+b != "inout" && a+b != "outin" {
			t.Errorf("arrived: %q, %q", a, b)
		}
	})
}

func TestPartitionedConnectionCanBeClosed(t *testing.T) {
	f := NewFaults()
	conn, far := pipe(t, f)
	f.Set(nodectl.Partition)
	errs := make(chan error, 2)
	go func() { _, err := conn.Write([]byte("x")); errs <- err }()
	go func() { _, err := io.ReadAll(conn); errs <- err }()
	_ = far.Close()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("a closed connection works")
		}
	}
}

func TestPartitionedDial(t *testing.T) {
	f := NewFaults()
	f.Set(nodectl.Partition)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dial := f.Dialer(func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dialled") })
	if _, err := dial(ctx, "tcp", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("partitioned: %v", err)
	}
	f.Release(nodectl.Partition)
	if _, err := dial(t.Context(), "tcp", "x"); err == nil || err.Error() != "dialled" {
		t.Errorf("healed: %v", err)
	}
}
