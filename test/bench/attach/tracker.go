package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// outcome is when a watch told of a VolumeAttachment, zero if it has not.
type outcome struct{ attached, gone time.Time }

// tracker times what becomes of VolumeAttachments.
type tracker struct {
	// again watches on from a resource version; nil at the end.
	again  func(version string) (watch.Interface, error)
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	version string
	seen    map[string]*outcome
	wake    chan struct{} // closed and replaced at each change
	err     error
}

// track watches from now on until ctx ends or it is stopped.
func track(ctx context.Context, client kubernetes.Interface) (*tracker, error) {
	attachments := client.StorageV1().VolumeAttachments()
	list, err := attachments.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	t := newTracker(cancel, func(version string) (watch.Interface, error) {
		return attachments.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	})
	t.version = list.ResourceVersion
	first, err := t.again(t.version)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watching VolumeAttachments: %w", err)
	}
	go t.run(ctx, first)
	return t, nil
}

func newTracker(cancel context.CancelFunc, again func(string) (watch.Interface, error)) *tracker {
	return &tracker{again: again, cancel: cancel, done: make(chan struct{}), seen: map[string]*outcome{}, wake: make(chan struct{})}
}

// run reads the watch, and goes on with another where the server ends it: it
// does that to whoever is slow, and on a machine that is busy everyone is.
func (t *tracker) run(ctx context.Context, w watch.Interface) {
	defer close(t.done)
	for {
		for event := range w.ResultChan() {
			t.note(event, time.Now())
		}
		t.mu.Lock()
		version, err := t.version, t.err
		t.mu.Unlock()
		if err == nil && ctx.Err() != nil {
			err = errors.New("the watch of VolumeAttachments ended")
		}
		if err == nil {
			w, err = t.again(version)
		}
		if err != nil {
			t.fail(err)
			return
		}
	}
}

// fail ends all waiting.
func (t *tracker) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	close(t.wake)
	t.wake = make(chan struct{})
}

func (t *tracker) note(event watch.Event, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	va, ok := event.Object.(*storagev1.VolumeAttachment)
	if !ok {
		t.err = fmt.Errorf("watching VolumeAttachments: %w", apierrors.FromObject(event.Object))
	} else {
		t.version = va.ResourceVersion
		o := t.seen[va.Name]
		if o == nil {
			o = &outcome{}
			t.seen[va.Name] = o
		}
		switch {
		case event.Type == watch.Deleted:
			o.gone = now
		case va.Status.Attached && o.attached.IsZero():
			o.attached = now
		}
	}
	close(t.wake)
	t.wake = make(chan struct{})
}

// stop ends the watch.
func (t *tracker) stop() {
	t.cancel()
	<-t.done
}

func attached(o *outcome) time.Time { return o.attached }
func gone(o *outcome) time.Time     { return o.gone }

// await gives the times of something that becomes of all of them.
func (t *tracker) await(ctx context.Context, names []string, what func(*outcome) time.Time) ([]time.Time, error) {
	times := make([]time.Time, 0, len(names))
	for {
		t.mu.Lock()
		for len(times) < len(names) {
			o := t.seen[names[len(times)]]
			if o == nil || what(o).IsZero() {
				break
			}
			times = append(times, what(o))
		}
		wake, err := t.wake, t.err
		t.mu.Unlock()
		switch {
		case len(times) == len(names):
			return times, nil
		case err != nil:
			return nil, err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %s and %d more: %w", names[len(times)], len(names)-len(times)-1, context.Cause(ctx))
		}
	}
}
