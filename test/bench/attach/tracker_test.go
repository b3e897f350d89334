package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func attachment(name string, is bool) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: map[string]string{"a": "1", "b": "2"}[name]}, Status: storagev1.VolumeAttachmentStatus{Attached: is}}
}

func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, second := watch.NewFake(), watch.NewFake()
		tr := newTracker(cancel, func(version string) (watch.Interface, error) {
			if version != "2" {
				t.Errorf("watches on from %q, want that of b", version)
			}
			return second, nil
		})
		context.AfterFunc(ctx, second.Stop)
		go tr.run(ctx, w)
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
		times, err := tr.await(t.Context(), []string{"a", "b"}, attached)
		if err != nil || times[0].Sub(begun) != time.Second || times[1].Sub(begun) != 0 {
			t.Errorf("attached at %v, %v; want after 1 s and at once", times, err)
		}
		times, err = tr.await(t.Context(), []string{"b"}, gone)
		if err != nil || times[0].Sub(begun) != 2*time.Second {
			t.Errorf("gone at %v, %v; want after 2 s", times, err)
		}
		bounded, enough := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("enough"))
		defer enough()
		if _, err := tr.await(bounded, []string{"a"}, gone); err == nil {
			t.Error("a is taken for gone")
		}
		tr.stop()
		if _, err := tr.await(t.Context(), []string{"a"}, gone); err == nil {
			t.Error("the end of the watch is not told")
		}
	})
}
