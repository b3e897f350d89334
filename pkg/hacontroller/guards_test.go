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
		pass(time.Hour)
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
