package hacontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// What people, other controllers and webhooks do to the objects meanwhile.

func withRecord(t *testing.T, targets ...volume.Target) func(*storagev1.VolumeAttachment) {
	t.Helper()
	value, err := volume.FenceRecord{Node: node1, Targets: targets, Reason: "r"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return func(va *storagev1.VolumeAttachment) {
		va.Annotations = map[string]string{volume.AnnotationFenced: value}
	}
}

// TestRecordThatIsNotItsOwn: a record is the licence to go on without verdict and
// judge. One that was copied, edited or restored with its object licenses nothing,
// and somebody is told.
func TestRecordThatIsNotItsOwn(t *testing.T) {
	for name, target := range map[string]volume.Target{
		"of another attachment": {PV: "a", Node: node1, VolumeAttachmentUID: "uid-va-a-n1", PodUIDs: []types.UID{"uid-p"}},
		"of a predecessor":      {PV: "b", Node: node1, VolumeAttachmentUID: "old"},
		"of another node":       {PV: "b", Node: "n2", VolumeAttachmentUID: "uid-va-b-n1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(false), []string{"a", "b"}, aPod("p", "a"))
				s.targets.byPV = nil // nobody says that anything fails
				update(s.world, vasGVR, "", "va-b-n1", withRecord(t, target))
				_, stop := s.with(WithFencer(s.fencer))
				pass(5 * time.Minute)
				stop()
				s.wrote()
				if s.told("FailoverRefused va-b-n1 ") != 1 {
					t.Errorf("events %q", s.events)
				}
			})
		})
	}
}

// TestFenceAgainAfterTheRecordWasTakenAway: what was acknowledged then proves
// nothing now, since the volume may have been published again in between.
func TestFenceAgainAfterTheRecordWasTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pod := aPod("p", "a")
		pod.Finalizers = []string{"example.com/keep"}
		s := newScene(t, aNode(false), []string{"a"}, pod)
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(time.Second)
		update(s.world, nodesGVR, "", node1, func(n *v1.Node) { n.Annotations, n.Spec.Taints = nil, nil })
		update(s.world, vasGVR, "", "va-a-n1", func(va *storagev1.VolumeAttachment) { va.Annotations = nil })
		pass(time.Minute)
		stop()
		recorded, fenced := s.logged("patch volumeattachments va-a"), s.logged("fence ")
		if recorded != 2 || fenced != 2 {
			t.Errorf("recorded %d times, fenced %d times, want 2 of each:\n%s", recorded, fenced, strings.Join(s.log(), "\n"))
		}
	})
}

// TestConflictOnDeleteIsNoHotLoop: an admission webhook may answer 409 for a pod
// that is there.
func TestConflictOnDeleteIsNoHotLoop(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		tries := 0
		s.before = func(line string) error {
			if strings.HasPrefix(line, "delete pods") {
				tries++
				return apierrors.NewConflict(podsGVR.GroupResource(), "p", errors.New("denied by a webhook"))
			}
			return nil
		}
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(10 * time.Minute)
		stop()
		if tries < 5 || tries > 100 {
			t.Errorf("%d deletions in ten minutes", tries)
		}
		if n := s.told("FailoverStepFailed p "); n < 2 || n > 10 {
			t.Errorf("told %d times", n)
		}
	})
}

// TestHoldThatDoesNotStay: somebody takes the taint away as soon as it is there.
func TestHoldThatDoesNotStay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		patches := 0
		s.after = func(line string) error {
			if line == "patch nodes n1" && patches < 300 { // or a hot loop would never end
				patches++
				update(s.world, nodesGVR, "", node1, func(n *v1.Node) { n.Spec.Taints = nil })
			}
			return nil
		}
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(10 * time.Minute)
		stop()
		if patches < 5 || patches > 30 {
			t.Errorf("%d patches in ten minutes", patches)
		}
		if s.told("FailoverRefused n1 ") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

func TestStepsThatAreForbiddenAreTold(t *testing.T) {
	for verb, about := range map[string]string{
		"patch nodes": "p", "patch volumeattachments": "p", "delete pods": "p", "delete volumeattachments": "va-a-n1",
	} {
		t.Run(verb, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
				s.before = func(line string) error {
					if strings.HasPrefix(line, verb) {
						return apierrors.NewForbidden(podsGVR.GroupResource(), "p", errors.New("RBAC"))
					}
					return nil
				}
				signal, stop := s.with(WithFencer(s.fencer))
				signal("a")
				pass(time.Hour)
				stop()
				if n := s.told("FailoverStepFailed " + about + " "); n < 1 || n > 12 {
					t.Errorf("told %d times in an hour: %q", n, s.events)
				}
			})
		})
	}
}

// hangingFor is a storage that does not answer for one node.
type hangingFor struct {
	node   string
	fenced chan string
}

func (f hangingFor) Fence(ctx context.Context, va *storagev1.VolumeAttachment) error {
	if va.Spec.NodeName == f.node {
		<-ctx.Done()
		return ctx.Err()
	}
	f.fenced <- va.Name
	return nil
}

func (hangingFor) Unfence(context.Context, string) error { return nil }

// TestHangingFencesDoNotHoldUpOtherNodes, however many they are.
func TestHangingFencesDoNotHoldUpOtherNodes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var pvs []string
		for i := range 100 {
			pvs = append(pvs, fmt.Sprintf("v%03d", i))
		}
		s := newScene(t, aNode(false), pvs, aPod("p", pvs...))
		n2 := aNode(false)
		n2.Name, n2.UID = "n2", "node-2"
		q := aPod("q", "x")
		q.Spec.NodeName = "n2"
		objects := aVolume("x")
		objects[2] = anAttachment("x", "n2")
		s.add(append([]runtime.Object{n2, q}, objects...)...)
		s.targets.byPV["x"] = []volume.Target{{PV: "x", Node: "n2", VolumeAttachmentUID: "uid-va-x-n2", PodUIDs: []types.UID{"uid-q"}}}
		f := hangingFor{node1, make(chan string, 1)}
		signal, stop := s.with(WithFencer(f), WithFenceTimeout(45*time.Second))
		signal("v000")
		pass(time.Second)
		signal("x")
		pass(time.Second)
		select {
		case <-f.fenced:
		default:
			t.Error("the node whose storage answers waits for the other")
		}
		stop()
	})
}

// TestClaimThatThePVDoesNotName: anybody may make a claim that names somebody's
// PersistentVolume, and must not be able to veto its move.
func TestClaimThatThePVDoesNotName(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		stranger := aPod("stranger", "x")
		stranger.Namespace = "theirs"
		s.add(stranger, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: stranger.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, UID: "theirs"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "a"},
		})
		update(s.world, v1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "a", func(pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: "claim-a", UID: "uid-claim-a"}
		})
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		stop()
		if s.logged("evict p") != 1 || s.logged("evict") != 1 {
			t.Errorf("wrote %q, events %q", s.log(), s.events)
		}
	})
}

func at(minute int) metav1.Time { return metav1.Unix(int64(60*minute), 0) }

// TestEachHeldVolumeHasItsTime: a successor recalls from it how long to suspect.
func TestEachHeldVolumeHasItsTime(t *testing.T) {
	node := aNode(false, versioned)
	for i, pv := range []string{"a", "b"} {
		patch, err := addHold(node, driver, []volume.HeldVolume{{PV: pv}}, at(i))
		if err != nil {
			t.Fatal(err)
		}
		node = apply(t, node, patch)
	}
	rec, err := holdRecordOf(node, driver)
	if err != nil || len(rec.Volumes) != 2 {
		t.Fatal(rec, err)
	}
	for i, v := range rec.Volumes {
		if since, want := rec.HeldSince(v), at(i); !since.Equal(&want) {
			t.Errorf("%s is held since %v, want %v", v.PV, since, want)
		}
	}
}
