package track

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

func attachment(name string, is bool) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: map[string]string{"a": "1", "b": "2"}[name]}, Status: storagev1.VolumeAttachmentStatus{Attached: is}}
}

// follow tracks the given watches, one after the other, from version 0.
func follow(t *testing.T, versions []string, watches ...watch.Interface) *Tracker {
	t.Helper()
	tr, err := Start(t.Context(), Kind{
		What: "VolumeAttachments",
		List: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &storagev1.VolumeAttachmentList{ListMeta: metav1.ListMeta{ResourceVersion: "0"}}, nil
		},
		Watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if len(watches) == 0 {
				return nil, errors.New("no watch is left")
			}
			if o.ResourceVersion != versions[0] {
				t.Errorf("watches from %q, want %q", o.ResourceVersion, versions[0])
			}
			next := watches[0]
			watches, versions = watches[1:], versions[1:]
			return next, nil
		},
		Name: func(o runtime.Object) string { return o.(*storagev1.VolumeAttachment).Name },
		Marks: func(o runtime.Object) []string {
			if o.(*storagev1.VolumeAttachment).Status.Attached {
				return []string{"attached"}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, second := watch.NewFake(), watch.NewFake()
		tr := follow(t, []string{"0", "2"}, w, second)
		begun := time.Now()
		go func() {
			w.Add(attachment("a", false))
			w.Modify(attachment("b", true))
			w.Stop() // the server may end it
			time.Sleep(time.Second)
			second.Modify(attachment("a", true))
			time.Sleep(time.Second)
			second.Modify(attachment("a", true)) // once more is not the first time
			second.Delete(attachment("b", true))
		}()
		times, err := tr.Await(t.Context(), []string{"a", "b"}, "attached")
		if err != nil || times[0].Sub(begun) != time.Second || times[1].Sub(begun) != 0 {
			t.Errorf("attached at %v, %v; want after 1 s and at once", times, err)
		}
		times, err = tr.Await(t.Context(), []string{"b"}, Gone)
		if err != nil || times[0].Sub(begun) != 2*time.Second {
			t.Errorf("gone at %v, %v; want after 2 s", times, err)
		}
		bounded, enough := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("enough"))
		defer enough()
		if _, err := tr.Await(bounded, []string{"b", "a"}, Gone); err == nil {
			t.Error("a is taken for gone")
		}
		tr.Stop()
		if _, err := tr.Await(t.Context(), []string{"a"}, Gone); err == nil {
			t.Error("the end of the watch is not told")
		}
	})
}

// TestComeBack: what is made again under its name has not gone, even if that
// happens while others are waited for.
func TestComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch.NewFake()
		tr := follow(t, []string{"0"}, w)
		begun := time.Now()
		go func() {
			w.Delete(attachment("a", false))
			time.Sleep(time.Second)
			w.Add(attachment("a", false))
			w.Delete(attachment("b", false))
			time.Sleep(time.Second)
			w.Delete(attachment("a", false))
		}()
		times, err := tr.Await(t.Context(), []string{"a", "b"}, Gone)
		if err != nil || times[0].Sub(begun) != 2*time.Second || times[1].Sub(begun) != time.Second {
			t.Errorf("gone at %v, %v; want after 2 s and 1 s", times, err)
		}
		tr.Stop()
	})
}

func TestErrorEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch.NewFake()
		tr := follow(t, []string{"0"}, w)
		go func() {
			w.Error(&metav1.Status{Reason: metav1.StatusReasonExpired, Code: 410, Message: "too old"})
			w.Stop()
		}()
		if _, err := tr.Await(t.Context(), []string{"a"}, Gone); err == nil {
			t.Error("an error of the watch is not told")
		}
		tr.Stop()
	})
}
