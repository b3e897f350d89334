package binary

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// alone stops all replicas and starts one, which leads.
func alone(ctx context.Context, t *testing.T, r *rig.Rig, extra ...string) *rig.Sidecar {
	t.Helper()
	for _, s := range r.Sidecars {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	r.Sidecars = nil
	s, err := r.StartSidecar(ctx, extra...)
	if err != nil {
		t.Fatal(err)
	}
	await(ctx, t, r, "the replica leads", func() bool { return r.Leader() == s })
	return s
}

// hangingPublish asks for a new volume on node-1 and returns when the driver has
// the call, which hangs until the fault is released.
func hangingPublish(ctx context.Context, t *testing.T, r *rig.Rig, name string) (fault string) {
	t.Helper()
	pv, err := r.NewVolume(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	fault, err = r.Driver.Inject(ctx, simctl.Fault{Method: "ControllerPublishVolume", Volume: pv.Spec.CSI.VolumeHandle, Hang: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Driver.Clear(context.WithoutCancel(ctx), fault); err != nil {
			t.Error(err)
		}
	})
	attach(ctx, t, r, pv.Name)
	if _, err := r.Driver.AwaitHits(ctx, fault, 1); err != nil {
		t.Fatal(err)
	}
	return fault
}

// terminate sends SIGTERM and returns when the replica has taken it in.
func terminate(ctx context.Context, t *testing.T, r *rig.Rig, s *rig.Sidecar) {
	t.Helper()
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, r, "the replica stops", func() bool { return s.Get("/livez") != nil })
}

func attached(ctx context.Context, t *testing.T, r *rig.Rig, pv string) bool {
	t.Helper()
	va, err := r.Client.StorageV1().VolumeAttachments().Get(ctx, "va-"+pv, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return va.Status.Attached
}

func heldByNobody(held map[string]string) bool {
	for _, holder := range held {
		if holder != "" {
			return false
		}
	}
	return true
}

// A call that is under way ends, what it did is written, and only then are the
// leases released.
func TestStopDrainsACall(t *testing.T) {
	r, ctx := world(t), bounded(t)
	s := alone(ctx, t, r)
	fault := hangingPublish(ctx, t, r, "drained")
	before := holders(ctx, t, r)
	terminate(ctx, t, r, s)
	// Longer than it takes to renew: the lease must not run out meanwhile.
	select {
	case <-s.Done():
		t.Fatalf("the replica ended with a call under way: %s", s.Tail())
	case <-time.After(leaseDuration + time.Second):
	}
	for name, holder := range holders(ctx, t, r) {
		if holder == "" || holder != before[name] {
			t.Errorf("during the drain lease %s is held by %q, was by %q", name, holder, before[name])
		}
	}
	if err := r.Driver.Release(ctx, fault); err != nil {
		t.Fatal(err)
	}
	if code := ended(ctx, t, s.Process); code != 0 {
		t.Errorf("the replica ended with %d, want 0: %s", code, s.Tail())
	}
	r.Sidecars = nil
	if !attached(ctx, t, r, "drained") {
		t.Error("what the call did was not written")
	}
	if now, err := r.Driver.AwaitHits(ctx, fault, 1); err != nil || now.Hits != 1 {
		t.Errorf("%d calls, %v; want one", now.Hits, err)
	}
	if after := holders(ctx, t, r); !heldByNobody(after) {
		t.Errorf("leases are still held: %v", after)
	}
}

// A call that outlasts the drain may still land: the next leader has to wait as
// for one that died.
func TestStopGivesUpOnACallThatHangs(t *testing.T) {
	r, ctx := world(t), bounded(t)
	const drain = time.Second
	s := alone(ctx, t, r, "--drain-timeout="+drain.String())
	fault := hangingPublish(ctx, t, r, "hangs")
	before := holders(ctx, t, r)
	told := time.Now()
	terminate(ctx, t, r, s)
	code := ended(ctx, t, s.Process)
	if took := time.Since(told); took < drain || took > drain+5*time.Second {
		t.Errorf("the replica ended after %v, want about %v", took, drain)
	}
	after := holders(ctx, t, r)
	if code != 1 {
		t.Errorf("the replica ended with %d, want 1", code)
	}
	if tail := s.Tail(); !strings.Contains(tail, "ha-sidecar: ") || !strings.Contains(tail, "--drain-timeout=1s") || strings.Contains(tail, "goroutine ") {
		t.Errorf("the last words: %s", tail)
	}
	for name, holder := range after {
		if holder == "" || holder != before[name] {
			t.Errorf("lease %s is held by %q, was by %q; want that it was not released", name, holder, before[name])
		}
	}
	if attached(ctx, t, r, "hangs") {
		t.Error("the call hangs, and the volume is told to be attached")
	}
	// The next leader goes on when the leases have run out.
	r.Sidecars = nil
	if err := r.Driver.Release(ctx, fault); err != nil {
		t.Fatal(err)
	}
	alone(ctx, t, r)
	if took := time.Since(told); took < renewDeadline {
		t.Errorf("the next one leads %v after the stop, before the leases have run out", took)
	}
	await(ctx, t, r, "the volume is attached", func() bool { return attached(ctx, t, r, "hangs") })
}
