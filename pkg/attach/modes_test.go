package attach

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// twins are two PersistentVolumes of one volume, h-shared, on three nodes: many
// nodes may have the first, one the second.
func twins() []runtime.Object {
	alone := rwo("alone")
	alone.Spec.CSI.VolumeHandle = "h-shared"
	return objects(pv("shared", v1.ReadWriteMany), alone, node("n1"), node("n2"), node("n3"))
}

func TestExclusiveTwinKeepsOtherNodesAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), twins()...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("shared-1", "shared", "n1"))
			r.settle(time.Second)
			r.api.add(va("alone-1", "alone", "n1"))
			r.settle(time.Second)
			wantAttached(t, r, "alone-1", true)
			r.api.add(va("shared-2", "shared", "n2"))
			r.settle(time.Hour)
			wantAttached(t, r, "shared-2", false)
			r.restart()
			r.settle(time.Hour)
			wantAttached(t, r, "shared-2", false)
			wantCalls(t, r, "publish h-shared id-n1")
			// What was once given to one alone stays so until it is unpublished.
			r.api.remove(vaResource, "alone-1")
			r.settle(time.Second)
			wantGone(t, r, "alone-1")
			wantAttached(t, r, "shared-2", false)
			r.api.remove(vaResource, "shared-1")
			r.settle(time.Second)
			wantAttached(t, r, "shared-2", true)
		})
	})
}

func TestExclusiveTwinWaitsForOtherNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), twins()...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("shared-1", "shared", "n1"))
			r.api.add(va("shared-2", "shared", "n2"))
			r.settle(time.Second)
			r.api.add(va("alone-1", "alone", "n1"))
			r.settle(time.Hour)
			wantAttached(t, r, "alone-1", false)
			r.api.add(va("shared-3", "shared", "n3"))
			r.settle(time.Second)
			wantAttached(t, r, "shared-3", true) // nobody has it alone yet
			r.api.remove(vaResource, "shared-3")
			r.api.remove(vaResource, "shared-2")
			r.settle(time.Second)
			wantAttached(t, r, "alone-1", true)
			if n := r.driver.count("publish"); n != 3 {
				t.Errorf("%d publishes, want one for each node:\n%s", n, r.driver.log())
			}
		})
	})
}

var genTwinAct = rapid.Custom(func(t *rapid.T) act {
	return act{
		what: rapid.SampledFrom([]string{
			"create", "create", "create", "delete", "delete", "fence", "fault", "heal", "apifault", "restart", "wait", "wait", "wait",
		}).Draw(t, "what"),
		pv:   rapid.SampledFrom([]string{"shared", "alone"}).Draw(t, "pv"),
		node: rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"),
		nth:  rapid.IntRange(0, 5).Draw(t, "nth"),
	}
})

// checkTwins asserts that where one was told that it has the volume alone, no
// other node has it.
func (m *machine) checkTwins() error {
	if err := m.driver.check(); err != nil {
		return err
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		a := m.api.va("alone-" + node)
		if a == nil || !a.Status.Attached {
			continue
		}
		m.driver.mu.Lock()
		there := m.driver.there["h-shared"]
		here, n := there[a.Annotations[volume.AnnotationNodeID]], len(there)
		m.driver.mu.Unlock()
		if here && n > 1 {
			return fmt.Errorf("W1: %s has the volume alone, and it is on %d nodes", a.Name, n)
		}
	}
	return nil
}

// restTwins checks that somebody has the volume if anybody wants it.
func (m *machine) restTwins() error {
	m.heal()
	wanted, attached := 0, 0
	for _, node := range []string{"n1", "n2", "n3"} {
		for _, pv := range []string{"shared", "alone"} {
			if a := m.api.va(pv + "-" + node); a != nil {
				if a.DeletionTimestamp != nil {
					return fmt.Errorf("%s is still being deleted", a.Name)
				}
				wanted++
				if a.Status.Attached {
					attached++
				}
			}
		}
	}
	if wanted > 0 && attached == 0 {
		return fmt.Errorf("%d wait for one another", wanted)
	}
	return m.checkTwins()
}

func runTwins(t *testing.T, script []act) (calls string, err error) {
	synctest.Test(t, func(*testing.T) {
		m := &machine{rig: newRig(newFakeDriver(), twins()...)}
		m.start()
		defer func() { m.stop() }()
		for _, a := range script {
			m.do(a)
			if err = m.checkTwins(); err != nil {
				break
			}
		}
		if rest := m.restTwins(); err == nil {
			err = rest
		}
		calls = m.driver.log()
	})
	return calls, err
}

// TestTwinsInAnyOrder is TestAnyOrder for a volume that one PersistentVolume
// shares and another does not.
func TestTwinsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(genTwinAct, 1, 30).Draw(rt, "script")
		if calls, err := runTwins(t, script); err != nil {
			lines := make([]string, len(script))
			for i, a := range script {
				lines[i] = a.String()
			}
			rt.Fatalf("%v\nscript:\n%s\ncalls:\n%s", err, strings.Join(lines, "\n"), calls)
		}
	})
}
