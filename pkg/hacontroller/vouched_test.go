package hacontroller

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
)

// elector leads while it is true.
type elector struct{ atomic.Bool }

func (e *elector) IsLeader() bool { return e.Load() }

// inBubble runs a test on fake time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func (w *world) exists(what string, want bool) {
	w.t.Helper()
	gvr, ns := podsGVR, "ns"
	if strings.HasPrefix(what, "va-") {
		gvr, ns = vasGVR, ""
	}
	_, err := w.tracker.Get(gvr, ns, what)
	if got := !apierrors.IsNotFound(err); got != want {
		w.t.Errorf("%s exists: %v, want %v; writes:\n%s", what, got, want, strings.Join(w.log(), "\n"))
	}
}

func TestVouchedDeletesPodThenAttachment(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		signal, stop := w.run()
		signal("a")
		stop()
		want := "delete pods p uid-p\ndelete volumeattachments va-a-n1 uid-va-a-n1"
		if got := strings.Join(w.log(), "\n"); got != want {
			t.Errorf("writes:\n%s\nwant:\n%s", got, want)
		}
		if w.told("ForceDeleted p ") != 1 || w.told("ForceDetached va-a-n1 ") != 1 {
			t.Errorf("events: %q", w.events)
		}
	})
}

func TestVouchedSecondFailoverOfTheSameVolume(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		signal, stop := w.run()
		signal("a")
		w.exists("p", false)
		second := aPod("p", "a")
		second.UID, second.Spec.NodeName = "uid-2", "n2"
		w.add(second, anAttachment("a", "n2"))
		synctest.Wait()
		signal("a")
		stop()
		w.exists("p", false)
		w.exists("va-a-n2", false)
	})
}

func TestVouchedRetriesUntilTheAttachmentIsDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		failures := 3
		w.before = func(line string) error {
			if strings.HasPrefix(line, "delete volumeattachments") && failures > 0 {
				failures--
				return apierrors.NewInternalError(errors.New("etcd is busy"))
			}
			return nil
		}
		signal, stop := w.run()
		signal("a")
		w.exists("va-a-n1", true)
		pass(time.Minute)
		stop()
		w.exists("va-a-n1", false)
		if w.logged("delete pods") != 1 || w.told("ForceDeleted") != 1 || w.told("ForceDetached") != 1 {
			t.Errorf("writes %q, events %q", w.log(), w.events)
		}
	})
}

func TestVouchedKeepsTheAttachmentWhileThePodCannotBeDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		var refuse atomic.Bool
		refuse.Store(true)
		w.before = func(line string) error {
			if strings.HasPrefix(line, "delete pods") && refuse.Load() {
				return apierrors.NewServiceUnavailable("not now")
			}
			return nil
		}
		signal, stop := w.run()
		signal("a")
		pass(5 * time.Minute)
		w.exists("va-a-n1", true)
		if w.told("ForceDeleted") != 0 {
			t.Error("an event tells of a deletion that did not happen")
		}
		refuse.Store(false)
		pass(time.Minute)
		stop()
		w.exists("p", false)
		w.exists("va-a-n1", false)
	})
}

func TestVouchedFollowerNeverHitsTheReplacement(t *testing.T) {
	for name, replace := range map[string]func(w *world){
		"on another node": func(w *world) {
			second := aPod("p", "a")
			second.UID, second.Spec.NodeName = "uid-2", "n2"
			w.stop(podsGVR, "ns", "p")
			w.add(second, anAttachment("a", "n2")) // before the old one is gone
			w.stop(vasGVR, "", "va-a-n1")
		},
		"on the same node under the same names": func(w *world) {
			second, va := aPod("p", "a"), anAttachment("a", node1)
			second.UID, va.UID = "uid-2", "uid-va-2"
			w.stop(podsGVR, "ns", "p")
			w.stop(vasGVR, "", "va-a-n1")
			w.add(second, va)
		},
		"of the pod alone": func(w *world) {
			second := aPod("p", "a")
			second.UID = "uid-2"
			w.stop(podsGVR, "ns", "p")
			w.add(second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
				var el elector
				signal, stop := w.run(WithLeaderElector(&el))
				signal("a")
				pass(time.Minute)
				replace(w)
				synctest.Wait()
				el.Store(true)
				pass(5 * time.Minute)
				stop()
				if len(w.log()) != 0 {
					t.Errorf("wrote %q", w.log())
				}
				w.exists("p", true)
			})
		})
	}
}

func TestVouchedFollowerActsOnceItLeads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		var el elector
		signal, stop := w.run(WithLeaderElector(&el))
		signal("a")
		pass(time.Minute)
		w.exists("p", true)
		el.Store(true)
		pass(DefaultReconcileInterval)
		stop()
		w.exists("p", false)
		w.exists("va-a-n1", false)
	})
}

func TestVouchedScope(t *testing.T) {
	type want struct{ pod, va bool } // left
	for name, tc := range map[string]struct {
		objs  func() []runtime.Object
		opts  []Option
		want  want
		event string
	}{
		"a selected pod": {
			objs: func() []runtime.Object { return append(aVolume("a"), aPod("p", "a")) },
			opts: []Option{WithPodSelector(metav1.ListOptions{LabelSelector: "app=p", FieldSelector: "spec.nodeName=n1"})},
		},
		"a pod that is not selected": {
			objs:  func() []runtime.Object { return append(aVolume("a"), aPod("p", "a")) },
			opts:  []Option{WithPodSelector(metav1.ListOptions{LabelSelector: "app=other"})},
			want:  want{true, true},
			event: "FailoverRefused p ",
		},
		"a second pod that is not selected": {
			objs:  func() []runtime.Object { return append(aVolume("a"), aPod("p", "a"), aPod("q", "a")) },
			opts:  []Option{WithPodSelector(metav1.ListOptions{LabelSelector: "app=p"})},
			want:  want{true, true},
			event: "FailoverRefused q ",
		},
		"a pod on another node": {
			objs: func() []runtime.Object {
				pod := aPod("p", "a")
				pod.Spec.NodeName = "n2"
				return append(aVolume("a"), pod)
			},
			want: want{pod: true},
		},
		"a pod without a node": {
			objs: func() []runtime.Object {
				pod := aPod("p", "a")
				pod.Spec.NodeName = ""
				return append(aVolume("a"), pod)
			},
		},
		"a pod never scheduled": {
			objs: func() []runtime.Object {
				pod := aPod("p", "a")
				pod.Spec.NodeName, pod.Status.Phase = "", v1.PodPending
				return append(aVolume("a"), pod)
			},
			want: want{pod: true},
		},
		"a finished pod": {
			objs: func() []runtime.Object {
				pod := aPod("p", "a")
				pod.Status.Phase = v1.PodSucceeded
				return append(aVolume("a"), pod)
			},
			want: want{pod: true},
		},
		"an ephemeral volume": {
			objs: func() []runtime.Object {
				objs := aVolume("a")
				objs[1].(*v1.PersistentVolumeClaim).Name = "p-scratch"
				pod := aPod("p")
				pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
				return append(objs, pod)
			},
		},
		"an inline volume's attachment": {
			objs: func() []runtime.Object {
				objs := aVolume("a")
				objs[2].(*storagev1.VolumeAttachment).Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{}}
				return append(objs, aPod("p", "a"))
			},
			want: want{true, true},
		},
		"no claim": {
			objs: func() []runtime.Object {
				objs := aVolume("a")
				return []runtime.Object{objs[0], objs[2], aPod("p", "a")}
			},
			want: want{true, true},
		},
		"several attachments": {
			objs:  func() []runtime.Object { return append(aVolume("a"), anAttachment("a", "n2"), aPod("p", "a")) },
			want:  want{true, true},
			event: "FailoverRefused p ",
		},
		"several attachments and no pod": {
			objs:  func() []runtime.Object { return append(aVolume("a"), anAttachment("a", "n2")) },
			want:  want{false, true},
			event: "FailoverRefused va-a-n1 ",
		},
		"strict, without an owner": {
			objs: func() []runtime.Object {
				pod := aPod("p", "a")
				pod.OwnerReferences = nil
				return append(aVolume("a"), pod)
			},
			opts:  []Option{WithStrictScope()},
			want:  want{true, true},
			event: "FailoverRefused p ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, tc.objs()...)
				signal, stop := w.run(tc.opts...)
				signal("a")
				pass(time.Minute)
				stop()
				w.exists("p", tc.want.pod)
				w.exists("va-a-n1", tc.want.va)
				if tc.event != "" && w.told(tc.event) != 1 {
					t.Errorf("events %q, want one %q", w.events, tc.event)
				}
			})
		})
	}
}

func TestVouchedAllPodsOfTheVolumeOnTheNodeGoFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		other := aPod("elsewhere", "a")
		other.Spec.NodeName = "n2"
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"), aPod("q", "a"), other)...)
		signal, stop := w.run()
		signal("a")
		stop()
		log := w.log()
		if len(log) != 3 || !strings.HasPrefix(log[2], "delete volumeattachments") {
			t.Errorf("writes %q, want two pods and then the attachment", log)
		}
		w.exists("elsewhere", true)
	})
}

func TestVouchedWaitsForFinalizers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pod := aPod("p", "a")
		pod.Finalizers = []string{"example.com/keep"}
		w := newWorld(t, append(aVolume("a"), pod)...)
		signal, stop := w.run()
		signal("a")
		pass(25 * time.Minute)
		w.exists("va-a-n1", true)
		if n := w.logged("delete pods"); n != 1 {
			t.Errorf("deleted the pod %d times", n)
		}
		if n := w.told("FailoverRefused p "); n != 1 {
			t.Errorf("told %d times of the finalizer", n)
		}
		w.stop(podsGVR, "ns", "p")
		synctest.Wait()
		stop()
		w.exists("va-a-n1", false)
	})
}

func TestVouchedTellsOnlyOfWhatItDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		w.before = func(line string) error {
			if strings.HasPrefix(line, "delete pods") {
				w.stop(podsGVR, "ns", "p") // somebody else was faster
				return apierrors.NewNotFound(podsGVR.GroupResource(), "p")
			}
			return nil
		}
		signal, stop := w.run()
		signal("a")
		stop()
		w.exists("va-a-n1", false)
		if w.told("ForceDeleted") != 0 || w.told("ForceDetached") != 1 {
			t.Errorf("events %q", w.events)
		}
	})
}

func TestVouchedUnknownNamesAreHarmless(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		signal, stop := w.run()
		for _, name := range []string{"", "no such volume", "../a", "A"} {
			signal(name)
		}
		pass(time.Minute)
		stop()
		if len(w.log()) != 0 {
			t.Errorf("wrote %q", w.log())
		}
	})
}

func TestVouchedOnSharedInformers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, append(aVolume("a"), aPod("p", "a"))...)
		factory := informers.NewSharedInformerFactory(w.client, 0)
		option := WithInformerFactory(factory)
		started := make(chan struct{})
		defer factory.Shutdown()
		defer close(started)
		signal, stop := w.run(option)
		factory.Start(started)
		synctest.Wait()
		signal("a")
		stop()
		w.exists("va-a-n1", false)
	})
}
