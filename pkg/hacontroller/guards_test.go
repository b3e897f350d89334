package hacontroller

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// What the informer does not know of yet is seen by the live read: a pod that
// the decision did not know keeps the closure where it is.
func TestGuardLiveRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		s.client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.ListAction).GetListRestrictions().Fields.Empty() {
				return false, nil, nil // the informer
			}
			return true, &v1.PodList{Items: []v1.Pod{*aPod("p", "a"), *aPod("late", "a")}}, nil
		})
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(25 * time.Minute)
		stop()
		s.wrote()
		if s.told("FailoverRefused late ") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

// A record goes onto what was read and nothing else: not onto a version that
// came after the read, nor onto a successor of the same name.
func TestGuardRecordVersion(t *testing.T) {
	for name, replace := range map[string]func(*scene){
		"changed": func(s *scene) {
			update(s.world, vasGVR, "", "va-a-n1", func(va *storagev1.VolumeAttachment) { va.Status.Attached = true })
		},
		"made again": func(s *scene) {
			again := anAttachment("a", node1)
			again.UID = "again"
			s.stop(vasGVR, "", "va-a-n1")
			s.add(again)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
				tries := 0
				s.client.PrependReactor("patch", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
					if tries++; tries == 1 {
						replace(s)
					}
					return false, nil, nil
				})
				s.before = func(line string) error {
					if strings.HasPrefix(line, "patch volumeattachments") && tries == 1 {
						t.Errorf("%q went onto another version than the one that was read", line)
					}
					return nil
				}
				signal, stop := s.with(WithFencer(s.fencer))
				signal("a")
				pass(time.Minute)
				stop()
				if tries == 0 {
					t.Error("no record was tried")
				}
			})
		})
	}
}

// Every view of up to two attachments and one pod: what is irreversible waits
// for every fence, attachments wait for the pods, and until the record a veto
// or an unknown attachment keeps everything where it is.
func TestGuardDecide(t *testing.T) {
	views := 0
	forEachView(func(v view) {
		views++
		d := decide(v)
		fenced := v.recorded > 0 && v.fenced >= v.attachments
		switch d.step {
		case stepPods:
			if !fenced {
				t.Errorf("a pod is deleted before every fence: %+v", v)
			}
		case stepAttachments:
			if !fenced || len(v.pods) > 0 {
				t.Errorf("an attachment is deleted under a pod or before every fence: %+v", v)
			}
		case stepHold, stepAsk, stepRecord, stepFence:
			if v.recorded == 0 && (v.veto != "" || v.missing) {
				t.Errorf("%s against a veto: %+v", d.step, v)
			}
		}
	})
	if views < 6_000 {
		t.Errorf("only %d views", views)
	}
}

func forEachView(f func(view)) {
	pods := [][]podView{nil, {{uid: "p"}}, {{uid: "p", terminating: true}}, {{uid: "p", terminating: true, forced: true}}}
	for bits := range 1 << 6 {
		is := func(n int) bool { return bits>>n&1 == 1 }
		for attachments := range 3 {
			for recorded := range attachments + 1 {
				for fenced := range recorded + 1 {
					for deleting := range attachments + 1 {
						for _, p := range pods {
							v := view{
								now: t0, evictDeadline: time.Minute, pods: p,
								nodeReady: is(0), held: is(1), canFence: is(2), missing: is(3),
								attachments: attachments, recorded: recorded, fenced: fenced, deleting: deleting,
							}
							if is(4) {
								v.veto = ReasonDaemonSet
							}
							if is(5) {
								v.askedSince = t0.Add(-time.Hour)
							}
							f(v)
						}
					}
				}
			}
		}
	}
}
