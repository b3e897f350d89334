package attach

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

const inUse = v1.UniqueVolumeName("kubernetes.io/csi/" + testDriver + "^h-a")

// nodeUsing is a Ready node that has h-a attached and in use.
func nodeUsing(name string) []runtime.Object {
	objs := node(name)
	objs[0].(*v1.Node).Status = v1.NodeStatus{
		Conditions:      []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		VolumesAttached: []v1.AttachedVolume{{Name: "other"}, {Name: inUse}},
		VolumesInUse:    []v1.UniqueVolumeName{inUse},
	}
	return objs
}

func (r *rig) node(name string, change func(*v1.Node)) {
	r.api.change(nodeResource, name, func(o runtime.Object) { change(o.(*v1.Node)) })
}

func guarding(delay time.Duration) *rig {
	r := newRig(newFakeDriver("h-a"), objects(rwo("a"), nodeUsing("n1"), node("n2"))...)
	r.config = func(cfg *Config) { cfg.ManualDetachDelay = delay }
	return r
}

const attachedAndDetached = "publish h-a id-n1\nunpublish h-a id-n1"

// Without the delay it is only told of.
func TestKK106710_ManualDetachIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := guarding(0)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.told()
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			wantCalls(t, r, attachedAndDetached)
			if told := r.told(); len(told) != 1 || !strings.Contains(told[0], "Warning "+ReasonDeletedInUse) || !strings.Contains(told[0], "--manual-detach-delay") {
				t.Errorf("events %q", told)
			}
			if n := len(r.c.guard.seen); n != 0 {
				t.Errorf("%d are remembered for ever", n)
			}
		})
	})
}

// With it the detach waits: for the node to be rid of the volume, or to fail,
// and no longer than that.
func TestKK106710_ManualDetachWaits(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"unmounted":  func(r *rig) { r.node("n1", func(n *v1.Node) { n.Status.VolumesInUse = nil }) },
		"unreported": func(r *rig) { r.node("n1", func(n *v1.Node) { n.Status.VolumesAttached = nil }) },
		"not ready":  func(r *rig) { r.node("n1", func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown }) },
		"out of order": func(r *rig) {
			r.node("n1", func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}} })
		},
		"gone":          func(r *rig) { r.api.remove(nodeResource, "n1") },
		"time is up":    func(r *rig) { r.settle(30 * time.Second) },
		"fence on it":   func(r *rig) { r.record("va") },
		"other changes": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := guarding(time.Minute)
				r.run(t, func(t *testing.T) {
					r.api.add(va("va", "a", "n1"))
					r.settle(time.Second)
					r.told()
					r.api.remove(vaResource, "va")
					r.api.add(va("va2", "a", "n2"))
					for range 30 {
						r.settle(time.Second)
						r.node("n1", func(n *v1.Node) { n.Status.Images = append(n.Status.Images, v1.ContainerImage{}) })
					}
					wantAttached(t, r, "va", true)
					wantCalls(t, r, "publish h-a id-n1")
					if told := strings.Join(r.told(), "\n"); strings.Count(told, ReasonDeletedInUse) != 1 || !strings.Contains(told, "within 1m0s") {
						t.Errorf("events %q", told)
					}
					if end == nil {
						r.settle(25 * time.Second)
						wantCalls(t, r, "publish h-a id-n1")
						end = func(r *rig) { r.settle(10 * time.Second) }
					}
					end(r)
					r.settle(time.Millisecond)
					wantGone(t, r, "va")
					wantAttached(t, r, "va2", true)
				})
			})
		})
	}
}

// What Kubernetes detaches is not kept back, though the informer of nodes lags
// behind that of VolumeAttachments; nor is what cannot be looked at.
func TestKK106710_KubernetesDetachesAtOnce(t *testing.T) {
	for name, live := range map[string]func() (runtime.Object, error){
		"the informer lags": func() (runtime.Object, error) { return node("n1")[0], nil },
		"no answer":         func() (runtime.Object, error) { return nil, errTimeout },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := guarding(time.Hour)
				r.run(t, func(t *testing.T) {
					r.api.add(va("va", "a", "n1"))
					r.settle(time.Minute)
					r.told()
					r.api.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
						n, err := live()
						return true, n, err
					})
					r.api.remove(vaResource, "va")
					r.settle(time.Second)
					wantGone(t, r, "va")
					if told := r.told(); len(told) > 0 {
						t.Errorf("events %q", told)
					}
				})
			})
		})
	}
}

// A fence is not kept back, though the VolumeAttachment is being deleted already.
func TestKK106710_FenceIsNotKeptBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := guarding(time.Hour)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Minute)
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantCalls(t, r, "publish h-a id-n1")
			began := time.Now()
			if err := r.c.Fence(t.Context(), r.record("va")); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("the fence took %v", took)
			}
			r.settle(time.Second)
			wantGone(t, r, "va")
		})
	})
}

// A new leader does not begin anew, and what the driver fails is not kept back
// once more.
func TestKK106710_DelayIsOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := guarding(time.Minute)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Minute)
			r.api.remove(vaResource, "va")
			r.settle(40 * time.Second)
			r.restart()
			wantCalls(t, r, "publish h-a id-n1")
			r.driver.set(behaviour{err: errAborted})
			r.settle(20 * time.Second)
			if n := r.driver.count("unpublish"); n == 0 {
				t.Error("it is kept back for longer than a minute")
			}
			r.driver.set(healthy)
			r.settle(10 * time.Second)
			wantGone(t, r, "va")
		})
	})
}
