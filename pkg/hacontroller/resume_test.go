package hacontroller

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestWalkResumesARecordOnItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		inUse := func(n *v1.Node) {
			n.Status.VolumesInUse = []v1.UniqueVolumeName{volume.UniqueName(driver, "h-a"), volume.UniqueName(driver, "h-b")}
		}
		s := newScene(t, aNode(true, inUse), []string{"a", "b"}, aPod("p", "a", "b"))
		rec := volume.FenceRecord{Node: node1, BootID: "boot-1", Targets: s.targets.byPV["a"], Reason: "because"}
		value, err := rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		update(s.world, vasGVR, "", "va-b-n1", func(va *storagev1.VolumeAttachment) {
			va.Annotations = map[string]string{volume.AnnotationFenced: value}
		})
		s.targets.withdraw("a")
		s.targets.withdraw("b")
		_, stop := s.with(WithFencer(s.fencer))
		synctest.Wait()
		stop()
		for _, name := range []string{"p", "va-a-n1", "va-b-n1"} {
			s.exists(name, false)
		}
		if len(s.fencer.fenced) != 2 || !holds(s.node(), driver, []string{"a", "b"}, true) {
			t.Errorf("fenced %q, node %+v", s.fencer.fenced, s.node())
		}
	})
}

func TestWalkShowsARecordThatItCannotRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		update(s.world, vasGVR, "", "va-a-n1", func(va *storagev1.VolumeAttachment) {
			va.Annotations = map[string]string{volume.AnnotationFenced: "{"}
		})
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(25 * time.Minute)
		stop()
		if s.logged("delete")+s.logged("fence") != 0 || s.told("FailoverRefused va-a-n1 ") != 1 {
			t.Errorf("wrote %q, events %q", s.log(), s.events)
		}
	})
}

func TestWalkRecordWithoutAFencerIsShown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		value, _ := volume.FenceRecord{Node: node1, Targets: s.targets.byPV["a"]}.Encode()
		update(s.world, vasGVR, "", "va-a-n1", func(va *storagev1.VolumeAttachment) {
			va.Annotations = map[string]string{volume.AnnotationFenced: value}
		})
		_, stop := s.with()
		pass(25 * time.Minute)
		stop()
		s.wrote()
		if s.told("FailoverRefused p ") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

// The attach/detach controller makes an attachment anew while the pod is there.
func TestWalkLeavesTheReplacementAttachmentAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		s.gone = func(obj runtime.Object) {
			if va, ok := obj.(*storagev1.VolumeAttachment); ok && va.UID == "uid-va-a-n1" {
				again := anAttachment("a", node1)
				again.UID = "uid-again"
				s.add(again)
			}
		}
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(time.Hour)
		stop()
		s.exists("p", false)
		if got := s.uid(vasGVR, "", "va-a-n1"); got != "uid-again" {
			t.Errorf("the new attachment is %q", got)
		}
	})
}
