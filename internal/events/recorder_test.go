package events

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEventsAreDelivered(t *testing.T) {
	client := fake.NewClientset()
	created := make(chan *v1.Event, 10)
	client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateAction).GetObject().(*v1.Event)
		created <- e
		return true, e, nil
	})
	r := New(t.Context(), client, "ha-sidecar d")
	defer r.Shutdown()
	r.Eventf(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u"}}, v1.EventTypeWarning, "Why", "because %d", 1)
	e := <-created
	if e.Source.Component != "ha-sidecar d" || e.InvolvedObject.Name != "b" || e.Reason != "Why" || e.Message != "because 1" {
		t.Errorf("event %+v", e)
	}
}

// An object that keeps changing its mind does not drown the API server.
func TestEventsOfOneObjectAreLimited(t *testing.T) {
	client := fake.NewClientset()
	var writes atomic.Int32
	marker := make(chan struct{})
	react := func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() == "marker" {
			close(marker)
			return false, nil, nil
		}
		writes.Add(1)
		return false, nil, nil
	}
	client.PrependReactor("create", "events", react)
	client.PrependReactor("patch", "events", react)
	r := New(t.Context(), client, "c")
	defer r.Shutdown()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u"}}
	for range 10 * burstPerObject {
		r.Event(pod, v1.EventTypeNormal, "Flaps", "again")
	}
	r.Event(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "marker", Name: "m", UID: "m"}}, v1.EventTypeNormal, "R", "m")
	<-marker
	if n := writes.Load(); n == 0 || n > burstPerObject+1 {
		t.Errorf("%d writes for one object, want at most %d", n, burstPerObject)
	}
}

// An API server that hangs must not keep the work waiting.
func TestRecordingNeverBlocks(t *testing.T) {
	client := fake.NewClientset()
	hang := make(chan struct{})
	client.PrependReactor("*", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-hang
		return true, nil, context.Canceled
	})
	ctx, cancel := context.WithCancel(t.Context())
	r := New(ctx, client, "c")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5000 {
			r.Event(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}, v1.EventTypeNormal, "R", "m")
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("recording blocked")
	}
	cancel()
	close(hang)
	r.Shutdown()
}
