package attach

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// newWire makes a wire for a replica or a program of its own.
func (w *world) newWire(t *testing.T, name string) *wire {
	t.Helper()
	own, err := newWire(filepath.Join(w.dir, name+".sock"), filepath.Join(w.dir, "driver.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.close)
	return own
}

// behindCut is a kubeconfig of the sidecars that goes through a cut.
func (w *world) behindCut(t *testing.T) (*cut, string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(w.dir, "cluster", "serviceaccount-*.kubeconfig"))
	if err != nil || len(found) != 1 {
		t.Fatalf("looking for the sidecars' kubeconfig: %v, %v", found, err)
	}
	config, err := clientcmd.LoadFromFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCut(strings.TrimPrefix(w.Cluster.RESTConfig().Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + c.listener.Addr().String()
	}
	path := filepath.Join(w.dir, "cut.kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return c, path
}

// stopAll ends all replicas, and runs one as ever after the test.
func (w *world) stopAll(t *testing.T) {
	t.Helper()
	stop := func() {
		for _, s := range w.Sidecars {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	cleanup(t, func(ctx context.Context) {
		stop()
		if _, err := w.StartSidecar(ctx); err != nil {
			t.Error(err)
		}
	})
	stop()
}

func (w *world) start(ctx context.Context, t *testing.T, flags ...string) *rig.Sidecar {
	t.Helper()
	s, err := w.StartSidecar(ctx, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) awaitLeads(ctx context.Context, t *testing.T, s *rig.Sidecar) {
	t.Helper()
	w.await(ctx, t, "the replica leads", func() bool {
		body, err := s.Body("/debug/leader")
		return err == nil && strings.HasPrefix(body, "leads")
	})
}

func ended(ctx context.Context, t *testing.T, p *process.Process) int {
	t.Helper()
	select {
	case <-p.Done():
		return p.ExitCode()
	case <-ctx.Done():
		t.Fatalf("it does not end: %v", context.Cause(ctx))
		return -1
	}
}

// The API server is out of the leader's reach, with all connections open and no
// answer. It ends by itself within the renew deadline, having called the driver no
// more; the next leader keeps what is attached and finishes what was half done.
func TestEA233_EA242_APIGone(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.stopAll(t)
	c, kubeconfig := w.behindCut(t)
	old := w.newWire(t, "old")
	leader := w.start(ctx, t, "--csi-address="+old.socket, "--kubeconfig="+kubeconfig)
	w.awaitLeads(ctx, t, leader)
	next := w.start(ctx, t)
	for _, name := range []string{"ea233-kept", "ea233-half", "ea233-late"} {
		w.volume(ctx, t, name)
	}
	w.attached(ctx, t, "ea233-kept", "ea233-kept", "node-1")
	id, clear := w.inject(ctx, t, simctl.Fault{Method: publish, Volume: handle("ea233-half"), Effect: true, Hang: true})
	w.attachment(ctx, t, "ea233-half", "ea233-half", "node-1")
	w.hits(ctx, t, id, 1)

	frozen := time.Now()
	c.freeze()
	w.attachment(ctx, t, "ea233-late", "ea233-late", "node-1")
	if code := ended(ctx, t, leader.Process); code != 1 {
		t.Errorf("the old leader ended with %d, want 1", code)
	}
	after := time.Since(frozen)
	t.Logf("the old leader ended after %v", after)
	if after > renewDeadline+time.Second {
		t.Errorf("it ended after %v, want at most its renew deadline of %v", after, renewDeadline)
	}
	if tail := leader.Tail(); !strings.Contains(tail, "leadership lost") {
		t.Errorf("its last words: %s", tail)
	}
	calls := len(old.of("", ""))
	w.awaitLeads(ctx, t, next)
	t.Logf("the next one leads after %v", time.Since(frozen))
	clear()
	for _, name := range []string{"ea233-late", "ea233-half", "ea233-kept"} {
		w.awaitAttached(ctx, t, name)
	}
	old.wantStory(t, handle("ea233-kept"), "publish node-1")
	w.wire.wantStory(t, handle("ea233-kept"), "")
	w.wire.wantStory(t, handle("ea233-half"), "publish node-1")
	w.wire.wantStory(t, handle("ea233-late"), "publish node-1")
	old.wantStory(t, handle("ea233-late"), "")
	if n := len(old.of("", "")); n != calls {
		t.Errorf("%d calls of the old leader after its end", n-calls)
	}
	for _, call := range old.of("", "") {
		if call.Method == publish && call.Began.After(frozen.Add(renewDeadline)) {
			t.Errorf("the old leader called %+v after its deadline", call)
		}
	}
}

// The leader is killed between a call and the write of what it did. The next one
// goes by what is durable, and asks the driver again: nothing leaks, whether the
// volume is still wanted or not.
func TestKK77324_KK94912_KilledBetweenCallAndWrite(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.stopAll(t)
	first := w.newWire(t, "first")
	leader := w.start(ctx, t, "--csi-address="+first.socket)
	w.awaitLeads(ctx, t, leader)
	for _, name := range []string{"killed-wanted", "killed-unwanted", "killed-leaving"} {
		w.volume(ctx, t, name)
	}
	w.attached(ctx, t, "killed-leaving", "killed-leaving", "node-1")
	var hanging []string
	for name, method := range map[string]string{"killed-wanted": publish, "killed-unwanted": publish, "killed-leaving": unpublish} {
		id, _ := w.inject(ctx, t, simctl.Fault{Method: method, Volume: handle(name), Effect: true, Hang: true, Times: 1})
		hanging = append(hanging, id)
	}
	w.attachment(ctx, t, "killed-wanted", "killed-wanted", "node-1")
	w.attachment(ctx, t, "killed-unwanted", "killed-unwanted", "node-1")
	w.remove(ctx, t, "killed-leaving")
	for _, id := range hanging {
		w.hits(ctx, t, id, 1)
	}
	leader.Kill()
	if on := w.published(ctx, t, handle("killed-unwanted")); len(on) != 1 {
		t.Fatalf("published to %v, so that nothing is tested", on)
	}
	w.remove(ctx, t, "killed-unwanted")
	w.start(ctx, t)
	w.awaitAttached(ctx, t, "killed-wanted")
	w.gone(ctx, t, "killed-unwanted")
	w.gone(ctx, t, "killed-leaving")
	w.wire.wantStory(t, handle("killed-wanted"), "publish node-1")
	w.wire.wantStory(t, handle("killed-unwanted"), "unpublish node-1")
	w.wire.wantStory(t, handle("killed-leaving"), "unpublish node-1")
}
