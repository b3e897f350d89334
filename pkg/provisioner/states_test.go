package provisioner

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// outcome is one scripted answer of Provision.
type outcome struct {
	state ProvisioningState
	err   error
}

var errFake = errors.New("fake error")

// script answers with one outcome after the other, and then with the last.
func script(outcomes ...outcome) *maker {
	m := &maker{}
	m.provision = func(options VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
		o := outcomes[min(len(m.asked()), len(outcomes))-1]
		if o.err != nil {
			return nil, o.state, o.err
		}
		return nfsVolume(options), ProvisioningFinished, nil
	}
	return m
}

var (
	final      = outcome{ProvisioningFinished, errFake}
	background = outcome{ProvisioningInBackground, errFake}
	noChange   = outcome{ProvisioningNoChange, errFake}
	reschedule = outcome{ProvisioningReschedule, errFake}
	ignored    = outcome{ProvisioningFinished, fmt.Errorf("here: %w", &IgnoredError{Reason: "it is not ours"})}
	unknown    = outcome{"", errFake}
	success    = outcome{}
)

// inProgress are the claims whose volume may exist.
func (w *world) inProgress() []types.UID {
	w.ctrl.ops.mu.Lock()
	defer w.ctrl.ops.mu.Unlock()
	return slices.Sorted(maps.Keys(w.ctrl.ops.begun))
}

// TestClaimsInProgress: what is remembered after each kind of answer.
func TestClaimsInProgress(t *testing.T) {
	busy := []types.UID{"uid-1-1"}
	for name, c := range map[string]struct {
		answers []outcome
		want    []types.UID
		// event is what is told last; empty: nothing.
		event string
	}{
		"final error: nothing in progress":                 {answers: []outcome{final}, event: "fake error"},
		"background error: in progress":                    {answers: []outcome{background}, want: busy, event: "fake error"},
		"no change: still not in progress":                 {answers: []outcome{noChange}, event: "fake error"},
		"no change: still in progress":                     {answers: []outcome{background, noChange}, want: busy, event: "fake error"},
		"final error removes from in progress":             {answers: []outcome{background, final}, event: "fake error"},
		"reschedule removes from in progress":              {answers: []outcome{background, reschedule}, event: "fake error"},
		"success removes from in progress":                 {answers: []outcome{background, success}, event: "Successfully provisioned"},
		"a state that is unknown: in progress":             {answers: []outcome{unknown}, want: busy, event: "fake error"},
		"ignored: not in progress":                         {answers: []outcome{ignored}},
		"ignored later: what was begun is still under way": {answers: []outcome{background, ignored}, want: busy, event: "ignored because it is not ours"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{
					objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName)}, maker: script(c.answers...),
				})
				w.rest(5)
				if got := w.inProgress(); !slices.Equal(got, c.want) {
					t.Errorf("in progress: %v, want %v", got, c.want)
				}
				events := w.told()
				switch {
				case c.event == "" && len(events) > 0:
					t.Errorf("events: %q", events)
				case c.event != "" && (len(events) == 0 || !strings.Contains(events[len(events)-1], c.event)):
					t.Errorf("events: %q, want %q last", events, c.event)
				}
			})
		})
	}
}

// TestClaimsInProgressIsUsedForDeletedPVCs: the claim and its class have gone
// while CreateVolume was unanswered; what it made is made known and deleted.
func TestClaimsInProgressIsUsedForDeletedPVCs(t *testing.T) {
	for name, classGone := range map[string]bool{"class there": false, "class gone": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := script(background)
				w := newWorld(t, setup{
					objects: []runtime.Object{storageClass("class-1", ourName, withPolicy(v1.PersistentVolumeReclaimRetain)), claim("claim-1", "uid-1-1", "class-1", ourName)},
					maker:   m, noResync: true, exponential: true,
				})
				w.rest(1)
				if classGone {
					w.api.dropClass("class-1")
				}
				w.api.dropClaim("claim-1")
				w.rest(20)
				asked := m.asked()
				if len(asked) < 2 || asked[0].Abandoned || !asked[len(asked)-1].Abandoned {
					t.Fatalf("Provision was called %d times, want first for the claim and then again for what it left", len(asked))
				}
				if got := asked[len(asked)-1].StorageClass == nil; got != classGone {
					t.Errorf("class is nil: %t", got)
				}
				m.mends()
				w.rest(40)
				pv := w.pvs()["pvc-uid-1-1"]
				if pv == nil || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete || !hasFinalizer(pv) {
					t.Fatalf("PersistentVolume = %+v, want one with policy Delete and our finalizer", pv)
				}
				if by := pv.Annotations[AnnotationProvisionedBy]; by != ourName || pv.Spec.StorageClassName != "class-1" {
					t.Errorf("provisioned by %q, class %q", by, pv.Spec.StorageClassName)
				}
				w.api.release("pvc-uid-1-1")
				w.rest(1)
				if _, removed := m.calls(); removed != 1 || len(w.pvs()) != 0 {
					t.Errorf("deleted %d times, PersistentVolumes left: %d", removed, len(w.pvs()))
				}
				nothingRemembered(t, w)
			})
		})
	}
}

// TestClaimDeletedWhileProvisioning: it goes while its first call is under way.
// The volume would outlive it by its class, also where the informer lags.
func TestClaimDeletedWhileProvisioning(t *testing.T) {
	for name, before := range map[string]func(*fake.Clientset){"seen": nil, "not seen": deaf("persistentvolumeclaims")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &maker{}
				m.provision = func(options VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
					time.Sleep(time.Second)
					return nfsVolume(options), ProvisioningFinished, nil
				}
				w := newWorld(t, setup{
					objects: []runtime.Object{storageClass("class-1", ourName, withPolicy(v1.PersistentVolumeReclaimRetain)), claim("claim-1", "uid-1-1", "class-1", ourName)},
					maker:   m, noResync: true, before: before,
				})
				w.rest(1)
				w.api.dropClaim("claim-1")
				w.rest(20)
				if pv := w.pvs()["pvc-uid-1-1"]; pv == nil || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
					t.Errorf("PersistentVolume = %+v, want one with policy Delete", pv)
				}
				if before == nil {
					nothingRemembered(t, w)
				}
			})
		})
	}
}

// nothingRemembered holds once nothing is in the cluster any more.
func nothingRemembered(t *testing.T, w *world) {
	t.Helper()
	o := w.ctrl.ops
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.begun) + len(o.saved) + len(o.failures) + len(o.deleted) + len(o.locked) + len(w.ctrl.slow.claims) + len(w.ctrl.told.last); n > 0 {
		t.Errorf("remembered: begun %v, saved %v, failures %v, deleted %v, locked %v, slow %v, told %v", o.begun, o.saved, o.failures, o.deleted, o.locked, w.ctrl.slow.claims, w.ctrl.told.last)
	}
	for name, q := range map[string]*queue{"claims": w.ctrl.claims, "volumes": w.ctrl.deletions} {
		q.mu.Lock()
		if n := len(q.failures) + len(q.due) + len(q.renewed); n > 0 {
			t.Errorf("queue of %s: failures %v, due %v, renewed %v", name, q.failures, q.due, q.renewed)
		}
		q.mu.Unlock()
	}
}

// TestSelectedNode: only an answer that there can be no volume on a node makes
// the scheduler choose again.
func TestSelectedNode(t *testing.T) {
	forbidden := func(c *fake.Clientset) {
		c.PrependReactor("patch", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(v1.Resource("persistentvolumeclaims"), "claim-1", errors.New("no patch"))
		})
	}
	for name, c := range map[string]struct {
		answer outcome
		key    string
		before func(*fake.Clientset)
		// during is done while Provision is under way.
		during func(w *world)
		want   string
	}{
		"reschedule: removed":                                       {answer: reschedule},
		"reschedule: removed, by its alpha name":                    {answer: reschedule, key: annotationAlphaSelectedNode},
		"reschedule: removed by an update where patch is forbidden": {answer: reschedule, before: forbidden},
		"reschedule: another choice stays": {answer: reschedule, want: "node-2", during: func(w *world) {
			w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) { c.Annotations[AnnotationSelectedNode] = "node-2" })
		}},
		"reschedule: another choice stays where patch is forbidden": {answer: reschedule, want: "node-2", before: forbidden, during: func(w *world) {
			w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) { c.Annotations[AnnotationSelectedNode] = "node-2" })
		}},
		"final error: kept":      {answer: final, want: "node-1"},
		"no change: kept":        {answer: noChange, want: "node-1"},
		"background error: kept": {answer: background, want: "node-1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key := AnnotationSelectedNode
				if c.key != "" {
					key = c.key
				}
				var w *world
				ready := make(chan struct{})
				m := &maker{}
				m.provision = func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
					<-ready
					if o.SelectedNode != "node-1" {
						return nil, ProvisioningFinished, errFake
					}
					if c.during != nil {
						c.during(w)
					}
					return nil, c.answer.state, c.answer.err
				}
				w = newWorld(t, setup{
					objects: []runtime.Object{storageClass("class-1", ourName, waitForConsumer), claim("claim-1", "uid-1-1", "class-1", ourName, annotated(key, "node-1"))},
					maker:   m, before: c.before,
				})
				close(ready)
				w.rest(5)
				got, err := w.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "claim-1", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if node := selectedNode(got); node != c.want {
					t.Errorf("selected node %q, want %q", node, c.want)
				}
				if busy := len(w.inProgress()) > 0; busy != (c.answer == background) {
					t.Errorf("in progress: %t", busy)
				}
				if made := len(m.asked()); c.answer == reschedule && c.want == "" && made != 1 {
					t.Errorf("Provision was called %d times, want once until a node is selected", made)
				}
			})
		})
	}
}

// TestRescheduleMeetsAConflict: an update that comes too late is made again.
func TestRescheduleMeetsAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		updates := 0
		w := newWorld(t, setup{
			objects: []runtime.Object{storageClass("class-1", ourName, waitForConsumer), claim("claim-1", "uid-1-1", "class-1", ourName, annotated(AnnotationSelectedNode, "n"))},
			maker:   script(reschedule), noResync: true,
			before: func(c *fake.Clientset) {
				c.PrependReactor("patch", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(v1.Resource("persistentvolumeclaims"), "claim-1", errors.New("no patch"))
				})
				c.PrependReactor("update", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
					if updates++; updates == 1 {
						return true, nil, apierrors.NewConflict(v1.Resource("persistentvolumeclaims"), "claim-1", errors.New("modified"))
					}
					return false, nil, nil
				})
			},
		})
		w.rest(1)
		if updates != 2 || len(w.maker.asked()) != 1 {
			t.Errorf("%d updates and %d calls, want two and one", updates, len(w.maker.asked()))
		}
	})
}

// TestRescheduleIsForbidden: the event says what to allow, and the node is taken off
// once that is. Nothing is gone on with on a node where there can be no volume.
func TestRescheduleIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{
			objects: []runtime.Object{storageClass("class-1", ourName, waitForConsumer), claim("claim-1", "uid-1-1", "class-1", ourName, annotated(AnnotationSelectedNode, "n"))},
			maker:   script(reschedule), noResync: true, exponential: true, giveUp: true, options: []Option{WithoutRetryLimit()},
			before: func(c *fake.Clientset) {
				forbidden("patch", "persistentvolumeclaims", 2)(c)
				forbidden("update", "persistentvolumeclaims", 2)(c)
			},
		})
		w.rest(50)
		events := w.told()
		if len(events) != 3 || !strings.Contains(events[0], "taking the selected node n off claim default/claim-1") || !strings.Contains(events[0], "allow patch or update of persistentvolumeclaims") {
			t.Errorf("events: %q", events)
		}
		got, err := w.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "claim-1", metav1.GetOptions{})
		if err != nil || selectedNode(got) != "" {
			t.Errorf("the selected node is %q, %v", selectedNode(got), err)
		}
	})
}

// TestQualifier: claims can be left to others, but not what is under way.
func TestQualifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := script(background, background, background, success)
		var unwanted atomic.Bool
		m.unwanted = func(c *v1.PersistentVolumeClaim) bool { return c.Name == "claim-2" || unwanted.Load() }
		w := newWorld(t, setup{
			objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName), claim("claim-2", "uid-1-2", "class-1", ourName)},
			maker:   m,
		})
		w.rest(1)
		unwanted.Store(true)
		w.rest(10)
		if got := slices.Sorted(maps.Keys(w.pvs())); !slices.Equal(got, []string{"pvc-uid-1-1"}) {
			t.Errorf("PersistentVolumes: %v", got)
		}
	})
}

// TestOwnershipLostWhileInBackground: a claim that is not ours any more, or whose
// node was taken away, is still worked on while its volume may exist.
func TestOwnershipLostWhileInBackground(t *testing.T) {
	for name, change := range map[string]func(*v1.PersistentVolumeClaim){
		"selected node removed": func(c *v1.PersistentVolumeClaim) { delete(c.Annotations, AnnotationSelectedNode) },
		"provisioner changed":   func(c *v1.PersistentVolumeClaim) { c.Annotations[annotationBetaStorageProvisioner] = otherName },
		"claim is being deleted": func(c *v1.PersistentVolumeClaim) {
			now := metav1.Now()
			c.Finalizers, c.DeletionTimestamp = []string{"a/b"}, &now
		},
		"claim was bound elsewhere": func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := script(background, success)
				w := newWorld(t, setup{
					objects: []runtime.Object{
						storageClass("class-1", ourName, waitForConsumer, withPolicy(v1.PersistentVolumeReclaimRetain)),
						claim("claim-1", "uid-1-1", "class-1", ourName, annotated(AnnotationSelectedNode, "n")),
					},
					maker: m, noResync: true, exponential: true,
				})
				w.rest(1)
				w.api.editClaim("claim-1", change)
				w.rest(30)
				pv := w.pvs()["pvc-uid-1-1"]
				if pv == nil {
					t.Fatal("the volume was forgotten")
				}
				want := v1.PersistentVolumeReclaimRetain
				if name == "claim was bound elsewhere" {
					want = v1.PersistentVolumeReclaimDelete
				}
				if got := pv.Spec.PersistentVolumeReclaimPolicy; got != want {
					t.Errorf("policy %s, want %s", got, want)
				}
			})
		})
	}
}

// TestPlainProvisioner: the seed's two methods are enough.
func TestPlainProvisioner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName)}, seedOnly: true})
		w.rest(1)
		w.api.dropClaim("claim-1")
		w.api.release("pvc-uid-1-1")
		w.rest(1)
		if made, removed := w.maker.calls(); made != 1 || removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("%d made, %d deleted, %d left", made, removed, len(w.pvs()))
		}
		nothingRemembered(t, w)
	})
}

// TestNeitherVolumeNorError: such an answer says nothing, so that it is asked again.
func TestNeitherVolumeNorError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{provision: func(VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			return nil, ProvisioningFinished, nil
		}}
		w := newWorld(t, setup{objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName)}, maker: m})
		w.rest(3)
		if len(w.inProgress()) != 1 || len(m.asked()) < 2 {
			t.Errorf("in progress %v after %d calls", w.inProgress(), len(m.asked()))
		}
	})
}

// TestProvisioningEvent: one that takes long is told of, a fast one is not.
func TestProvisioningEvent(t *testing.T) {
	for took, want := range map[time.Duration]int{100 * time.Millisecond: 1, 3 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			m := &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
				time.Sleep(took)
				return nfsVolume(o), ProvisioningFinished, nil
			}}
			w := newWorld(t, setup{objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName)}, maker: m, noResync: true})
			w.rest(50)
			events := w.told()
			if len(events) != want || !strings.Contains(events[want-1], "Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-1-1") {
				t.Errorf("%v: events %q", took, events)
			}
			if want == 2 && events[0] != `Normal Provisioning External provisioner is provisioning volume for claim "default/claim-1"` {
				t.Errorf("first event %q", events[0])
			}
		})
	}
}
