package hacontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

var errCrash = errors.New("the process is dead")

// raceOnce lets somebody else in before the first matching request.
func raceOnce(raced *bool, change func()) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) {
		if !*raced {
			*raced = true
			change()
		}
		return false, nil, nil
	}
}

// crashAt runs a controller that dies at the n-th write, before or after it took
// effect, and then a successor on what is left. It says whether it got that far.
func crashAt(t *testing.T, s *scene, n int, applied, signalAgain bool) (died bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	count := 0
	die := func(string) error {
		count++
		if count >= n {
			died = true
			cancel()
			return errCrash
		}
		return nil
	}
	s.mu.Lock()
	if applied {
		s.after = die
		s.before = func(string) error {
			if died {
				return errCrash // nothing reaches the server any more
			}
			return nil
		}
	} else {
		s.before = die
	}
	s.mu.Unlock()
	failing := make(chan string, 1)
	failing <- "a"
	hac := NewHAController("first", s.client, failing, append([]Option{WithEventRecorder(s), WithFencer(s.fencer)}, s.opts...)...)
	done := make(chan error, 1)
	go func() { done <- hac.Run(ctx) }()
	synctest.Wait()
	pass(2 * time.Minute)
	cancel()
	<-done
	s.mu.Lock()
	s.before, s.after = nil, nil
	s.mu.Unlock()

	signal, stop := s.with(WithFencer(s.fencer))
	if signalAgain {
		signal("a")
	}
	pass(5 * time.Minute)
	stop()
	return died
}

// A StatefulSet makes the pod again under its name as soon as it is gone. It and
// its attachment must survive whatever happens.
func withStatefulSet(s *scene) {
	s.gone = func(obj runtime.Object) {
		switch o := obj.(type) {
		case *v1.Pod:
			if strings.HasPrefix(string(o.UID), "uid-") {
				again := aPod(o.Name, "a", "b")
				again.UID, again.Spec.NodeName = "again-"+o.UID, "n2"
				s.add(again)
			}
		case *storagev1.VolumeAttachment:
			if o.Spec.NodeName == node1 {
				s.add(anAttachment(pvOf(o), "n2"))
			}
		}
	}
}

func TestCrashAtEveryWriteOfAFencedWalk(t *testing.T) {
	for _, ready := range []bool{false, true} {
		for _, applied := range []bool{false, true} {
			for n := 1; ; n++ {
				died := false
				name := fmt.Sprintf("ready=%v/applied=%v/write=%d", ready, applied, n)
				t.Run(name, func(t *testing.T) {
					inBubble(t, func(t *testing.T) {
						s := newScene(t, aNode(ready), []string{"a", "b"}, aPod("p", "a", "b"), aPod("q", "b"))
						withStatefulSet(s)
						died = crashAt(t, s, n, applied, true)
						checkFinished(t, s)
					})
				})
				if t.Failed() || !died {
					break
				}
				if n > 50 {
					t.Fatal("the walk does not end")
				}
			}
		}
	}
}

// checkFinished checks that the old pods and attachments are gone, each deleted
// once at most, and the new ones untouched.
func checkFinished(t *testing.T, s *scene) {
	t.Helper()
	for _, name := range []string{"p", "q"} {
		if got := s.uid(podsGVR, "ns", name); string(got) != "again-uid-"+name {
			t.Errorf("pod %s is %q, want the replacement; writes:\n%s", name, got, strings.Join(s.log(), "\n"))
		}
		if n := s.logged("delete pods " + name + " uid-"); n > 1 {
			t.Errorf("pod %s deleted %d times", name, n)
		}
		if n := s.logged("delete pods " + name + " again"); n > 0 {
			t.Errorf("the replacement of %s was deleted", name)
		}
	}
	for _, pv := range []string{"a", "b"} {
		s.exists("va-"+pv+"-n1", false)
		s.exists("va-"+pv+"-n2", true)
	}
}

// After the record a successor needs no word from anybody; before it, it must
// forget.
func TestCrashWithoutASecondSignal(t *testing.T) {
	for n := 1; n <= 12; n++ {
		t.Run(fmt.Sprintf("write=%d", n), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(false), []string{"a", "b"}, aPod("p", "a", "b"), aPod("q", "b"))
				withStatefulSet(s)
				recorded := false
				crashAt(t, s, n, true, false)
				for _, line := range s.log() {
					recorded = recorded || strings.HasPrefix(line, "patch volumeattachments")
				}
				if recorded {
					checkFinished(t, s)
					return
				}
				if s.logged("delete")+s.logged("fence") != 0 {
					t.Errorf("wrote %q", s.log())
				}
			})
		})
	}
}

func TestCrashVouched(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for n := 1; n <= 3; n++ {
			t.Run(fmt.Sprintf("applied=%v/write=%d", applied, n), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					s := newScene(t, nil, []string{"a", "b"}, aPod("p", "a", "b"))
					withStatefulSet(s)
					s.opts = nil
					s.fencer = nil
					s.runVouchedCrash(n, applied)
					if n := s.logged("delete pods p again"); n > 0 {
						t.Error("the replacement was deleted")
					}
					s.exists("va-a-n1", false)
					s.exists("va-b-n1", true)
				})
			})
		}
	}
}

// runVouchedCrash is crashAt for a controller alone.
func (s *scene) runVouchedCrash(n int, applied bool) {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	count := 0
	die := func(string) error {
		if count++; count >= n {
			cancel()
			return errCrash
		}
		return nil
	}
	if applied {
		s.after = die
	} else {
		s.before = die
	}
	failing := make(chan string, 1)
	failing <- "a"
	done := make(chan error, 1)
	go func() { done <- NewHAController("first", s.client, failing).Run(ctx) }()
	pass(time.Minute)
	cancel()
	<-done
	s.before, s.after = nil, nil
	signal, stop := s.with()
	if s.uid(vasGVR, "", "va-a-n1") != "" {
		signal("a")
	}
	pass(time.Minute)
	stop()
}

func TestRecordSurvivesItsEncoding(t *testing.T) {
	rec := volume.FenceRecord{Node: node1, Targets: targetsOf([]string{"a"}, "u").byPV["a"]}
	value, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	va := anAttachment("a", node1)
	va.Annotations = map[string]string{volume.AnnotationFenced: value}
	got, ok, err := volume.FenceRecordOf(va)
	if !ok || err != nil || got.Targets[0].VolumeAttachmentUID != va.UID {
		t.Errorf("read back %+v, %v, %v", got, ok, err)
	}
}
