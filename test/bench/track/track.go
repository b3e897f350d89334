// Package track times by a watch what becomes of objects.
package track

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Gone is what a deleted object has become.
const Gone = "gone"

// Kind is what is watched.
type Kind struct {
	// What is the kind for people: "VolumeAttachments".
	What string
	// List gives the resource version to watch from, Watch watches on from one.
	List  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Name is what an object is called here, and Marks are what it shows that it
	// has become.
	Name  func(runtime.Object) string
	Marks func(runtime.Object) []string
}

// Tracker remembers when objects became something for the first time.
type Tracker struct {
	kind   Kind
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	version string
	seen    map[string]map[string]time.Time // by name and mark
	wake    chan struct{}                   // closed and replaced at each change
	err     error
}

// Start watches from now on until ctx ends or it is stopped.
func Start(ctx context.Context, kind Kind) (*Tracker, error) {
	list, err := kind.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", kind.What, err)
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", kind.What, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &Tracker{
		kind: kind, cancel: cancel, done: make(chan struct{}), version: accessor.GetResourceVersion(),
		seen: map[string]map[string]time.Time{}, wake: make(chan struct{}),
	}
	first, err := kind.Watch(ctx, metav1.ListOptions{ResourceVersion: t.version})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watching %s: %w", kind.What, err)
	}
	go t.run(ctx, first)
	return t, nil
}

// run reads the watch, and goes on with another where the server ends it: it
// does that to whoever is slow, and on a machine that is busy everyone is.
func (t *Tracker) run(ctx context.Context, w watch.Interface) {
	defer close(t.done)
	for {
		// Not every watch ends with its context.
		release := context.AfterFunc(ctx, w.Stop)
		for event := range w.ResultChan() {
			t.note(event, time.Now())
		}
		release()
		t.mu.Lock()
		version, err := t.version, t.err
		t.mu.Unlock()
		if err == nil && ctx.Err() != nil {
			err = fmt.Errorf("the watch of %s ended", t.kind.What)
		}
		if err == nil {
			w, err = t.kind.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		}
		if err != nil {
			t.fail(err)
			return
		}
	}
}

// fail ends all waiting.
func (t *Tracker) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	t.woken()
}

// woken wakes all who wait; t.mu is held.
func (t *Tracker) woken() {
	close(t.wake)
	t.wake = make(chan struct{})
}

func (t *Tracker) note(event watch.Event, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.woken()
	if event.Type == watch.Error {
		t.err = fmt.Errorf("watching %s: %w", t.kind.What, apierrors.FromObject(event.Object))
		return
	}
	object, err := meta.Accessor(event.Object)
	if err != nil {
		t.err = fmt.Errorf("watching %s: %w", t.kind.What, err)
		return
	}
	t.version = object.GetResourceVersion()
	name := t.kind.Name(event.Object)
	marks := t.seen[name]
	if marks == nil {
		marks = map[string]time.Time{}
		t.seen[name] = marks
	}
	if event.Type == watch.Deleted {
		marks[Gone] = now
		return
	}
	delete(marks, Gone) // it has come back under the same name
	for _, mark := range t.kind.Marks(event.Object) {
		if _, before := marks[mark]; !before {
			marks[mark] = now
		}
	}
}

// Stop ends the watch.
func (t *Tracker) Stop() {
	t.cancel()
	<-t.done
}

// Await gives the times at which all of them became something, in their order.
func (t *Tracker) Await(ctx context.Context, names []string, mark string) ([]time.Time, error) {
	known := 0
	for {
		t.mu.Lock()
		known = t.known(names, mark, known)
		if known == len(names) {
			// One that had gone may have come back.
			known = t.known(names, mark, 0)
		}
		if known == len(names) {
			defer t.mu.Unlock()
			times := make([]time.Time, 0, len(names))
			for _, name := range names {
				times = append(times, t.seen[name][mark])
			}
			return times, nil
		}
		wake, err := t.wake, t.err
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %s to be %s, and up to %d more of %d: %w", names[known], mark, len(names)-known-1, len(names), context.Cause(ctx))
		}
	}
}

// known counts on from so many names to the first of which the mark is not known;
// t.mu is held.
func (t *Tracker) known(names []string, mark string, from int) int {
	for from < len(names) {
		if _, found := t.seen[names[from]][mark]; !found {
			break
		}
		from++
	}
	return from
}
