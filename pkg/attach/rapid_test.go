package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// act is one thing that happens to the controller; the script of a run is drawn
// before it starts, so that the run itself is plain code in a bubble.
type act struct {
	what     string
	pv, node string
	nth      int
}

func (a act) String() string { return fmt.Sprintf("%s %s %s %d", a.what, a.pv, a.node, a.nth) }

func (a act) va() string { return a.pv + "-" + a.node }

var genAct = rapid.Custom(func(t *rapid.T) act {
	return act{
		what: rapid.SampledFrom([]string{
			"create", "create", "create", "delete", "delete", "fence", "fault", "fault", "heal", "apifault", "restart",
			"wait", "wait", "wait", "node gone", "node back", "strip", "touch", "hold", "lift", "lose", "list fault",
		}).Draw(t, "what"),
		pv:   rapid.SampledFrom([]string{"a", "shared"}).Draw(t, "pv"),
		node: rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"),
		nth:  rapid.IntRange(0, 5).Draw(t, "nth"),
	}
})

var faults = []behaviour{
	{err: errTimeout, effect: true}, {err: errTimeout}, {err: errRefused}, {err: errAborted},
	{takes: time.Hour, effect: true}, {takes: 3 * time.Second, effect: true},
}

var waits = []time.Duration{0, time.Millisecond, 500 * time.Millisecond, 5 * time.Second, 20 * time.Second, 6 * time.Minute}

// machine runs a script.
type machine struct {
	*rig
	pending []chan struct{}
}

func (m *machine) do(a act) {
	switch a.what {
	case "create":
		if m.api.va(a.va()) == nil {
			m.api.add(va(a.va(), a.pv, a.node))
		}
	case "delete":
		m.api.remove(vaResource, a.va())
	case "fence":
		m.startFence(a)
	case "fault":
		m.driver.set(faults[a.nth])
	case "heal":
		m.driver.set(healthy)
		m.api.setFault(nil)
	case "apifault":
		n := 0
		m.api.setFault(func(_, _ string) (error, error) {
			n++
			switch (n + a.nth) % 4 {
			case 0:
				return errAborted, nil
			case 1:
				return nil, errAborted
			default:
				return nil, nil
			}
		})
	case "restart":
		m.restart()
	case "wait":
		m.settle(waits[a.nth])
	case "node gone":
		m.api.remove(nodeResource, a.node)
		m.api.remove(csiNodeResource, a.node)
	case "node back":
		m.nodeBack(a.node, fmt.Sprintf("-%d", a.nth))
	case "strip", "touch":
		m.touch(a)
	case "hold":
		m.tryHold(a.node, volume.Handle("h-"+a.pv))
	case "lift":
		m.tryHold(a.node)
	case "lose":
		m.lose(a)
	case "list fault":
		m.driver.setList(listFaults[a.nth%len(listFaults)])
	}
}

// listFaults are lists that are no use: a failed one, one that tells of nothing,
// and one with IDs of another form. The last is none at all.
var listFaults = []func(context.Context, publications) (publications, error){
	func(context.Context, publications) (publications, error) { return nil, errTimeout },
	func(context.Context, publications) (publications, error) { return publications{}, nil },
	nil,
}

// lose lets the storage forget a publication by itself.
func (m *machine) lose(a act) {
	if attachment := m.api.va(a.va()); attachment != nil {
		m.driver.alter("unpublish", "h-"+a.pv, attachment.Annotations[volume.AnnotationNodeID])
	}
}

func (m *machine) tryHold(node string, handles ...volume.Handle) {
	if _, err := m.api.Tracker().Get(nodeResource, "", node); err == nil {
		m.hold(node, handles...)
	}
}

func (m *machine) nodeBack(node, suffix string) {
	if _, err := m.api.Tracker().Get(nodeResource, "", node); err == nil {
		return
	}
	m.api.add(&v1.Node{ObjectMeta: csiNode(node, "").ObjectMeta})
	m.api.add(csiNode(node, "id-"+node+suffix))
}

// touch changes a VolumeAttachment behind the controller's back. Our finalizer
// is stripped only at rest and with a live process: nobody can know of a
// publication that neither the API nor the memory tells of.
func (m *machine) touch(a act) {
	if m.api.va(a.va()) == nil {
		return
	}
	if a.what == "strip" {
		m.settle(time.Minute)
		if m.api.va(a.va()) == nil {
			return
		}
	}
	m.api.change(vaResource, a.va(), func(o runtime.Object) {
		attachment := o.(*storagev1.VolumeAttachment)
		if attachment.Labels == nil {
			attachment.Labels = map[string]string{}
		}
		attachment.Labels["touched"] = fmt.Sprint(a.nth)
		if a.what == "strip" && attachment.DeletionTimestamp == nil && attachment.Status.Attached {
			attachment.Finalizers = nil
		}
	})
	if a.what == "strip" && len(m.api.va(a.va()).Finalizers) == 0 {
		m.api.remove(vaResource, a.va())
		m.driver.set(healthy)
		m.api.setFault(nil)
		m.settle(time.Hour)
	}
}

// startFence does what hacontroller does: record, Fence, and, once it is
// acknowledged, the deletion.
func (m *machine) startFence(a act) {
	if m.api.va(a.va()) == nil {
		return
	}
	attachment := m.record(a.va())
	if attachment == nil {
		return // it went meanwhile
	}
	c, done := m.c, make(chan struct{})
	m.pending = append(m.pending, done)
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
		defer cancel()
		id := attachment.Annotations[volume.AnnotationNodeID]
		if c.Fence(ctx, attachment) == nil {
			if live := m.api.va(a.va()); live == nil || live.UID == attachment.UID {
				if id != "" && m.driver.has("h-"+a.pv, id) {
					m.driver.mu.Lock()
					m.driver.wrong = append(m.driver.wrong, "acknowledged fence of "+a.va()+" and the volume is there")
					m.driver.mu.Unlock()
				}
			}
		}
		m.api.remove(vaResource, a.va())
	}()
}

// check holds at any time.
func (m *machine) check() error {
	if err := errors.Join(m.driver.check(), m.c.ledger.checkWorld()); err != nil {
		return err
	}
	m.driver.mu.Lock()
	defer m.driver.mu.Unlock()
	if n := len(m.driver.there["h-a"]); n > 1 {
		return fmt.Errorf("W1: the exclusive volume is on %d nodes", n)
	}
	return nil
}

// heal ends all faults and lets everything come to rest.
func (m *machine) heal() {
	m.driver.set(healthy)
	m.driver.setList(nil)
	m.api.setFault(nil)
	for _, n := range []string{"n1", "n2", "n3"} {
		m.nodeBack(n, "-last")
		m.hold(n)
	}
	for _, done := range m.pending {
		<-done
	}
	m.settle(2 * time.Hour)
}

// rest heals everything and checks that what is there is what is wanted (I10).
func (m *machine) rest() error {
	m.heal()
	if err := m.check(); err != nil {
		return err
	}
	for _, pv := range []string{"a", "shared"} {
		if err := m.checkVolume(pv); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) checkVolume(pv string) error {
	wanted, attached := 0, 0
	for _, node := range []string{"n1", "n2", "n3"} {
		a := m.api.va(pv + "-" + node)
		if a == nil {
			continue
		}
		if a.DeletionTimestamp != nil {
			return fmt.Errorf("%s is still being deleted: %v", a.Name, a.Status.DetachError)
		}
		wanted++
		id := a.Annotations[volume.AnnotationNodeID]
		if a.Status.Attached {
			attached++
			if !slices.Contains(a.Finalizers, finalizer) || !m.driver.has("h-"+pv, id) {
				return fmt.Errorf("I5: %s says attached: %v %q", a.Name, a.Finalizers, id)
			}
		}
	}
	want := wanted
	if pv == "a" {
		want = min(wanted, 1)
	}
	m.driver.mu.Lock()
	defer m.driver.mu.Unlock()
	if there := len(m.driver.there["h-"+pv]); attached != want || there != want {
		return fmt.Errorf("%s: %d wanted, %d attached, on %d nodes %v", pv, wanted, attached, there, m.driver.there["h-"+pv])
	}
	return nil
}

func runScript(t *testing.T, script []act) (calls string, err error) {
	synctest.Test(t, func(*testing.T) {
		objs := objects(rwo("a"), pv("shared", v1.ReadWriteMany), node("n1"), node("n2"), node("n3"))
		m := &machine{rig: comparing(newFakeDriver("h-a"), func(cfg *Config) { cfg.DetachOrphans = true }, objs...)}
		m.start()
		defer func() { m.stop() }()
		for _, a := range script {
			m.do(a)
			if err = m.check(); err != nil {
				break
			}
		}
		restErr := m.rest()
		if err == nil {
			err = restErr
		}
		calls = m.driver.log()
	})
	return calls, err
}

// TestAnyOrder runs scripts of everything that people, nodes, the API and the
// driver may do, in any order, against the driver's own record of the truth.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(genAct, 1, 40).Draw(rt, "script")
		if calls, err := runScript(t, script); err != nil {
			lines := make([]string, len(script))
			for i, a := range script {
				lines[i] = a.String()
			}
			rt.Fatalf("%v\nscript:\n%s\ncalls:\n%s", err, strings.Join(lines, "\n"), calls)
		}
	})
}
