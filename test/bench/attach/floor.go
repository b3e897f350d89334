package main

import (
	"context"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

// Floor is how fast the API server takes the writes that no attacher can do
// without, when the bench makes them itself: no watch to wait for, and no driver.
// It is the limit of everybody's rates where the server has no CPU to spare.
type Floor struct {
	Attach stats.Spread `json:"attachesPerSecond"`
	Detach stats.Spread `json:"detachesPerSecond"`
}

// The writes of an attach after the create, and of a detach after the delete.
const (
	floorFinalizer = `{"metadata":{"finalizers":["bench.example.com/floor"]}}`
	floorAttached  = `{"status":{"attached":true,"attachmentMetadata":{"generation":"1"}}}`
	floorGone      = `{"metadata":{"finalizers":null}}`
)

func (w *stage) floor(ctx context.Context, volumes, runs int, progress io.Writer) (*Floor, error) {
	var attaches, detaches []float64
	for i := range runs {
		b, err := w.newBatch(ctx, 0, volumes)
		if err != nil {
			return nil, err
		}
		attach, err := b.rate(ctx, attached, b.floorAttach)
		if err != nil {
			return nil, fmt.Errorf("the writes of an attach: %w", err)
		}
		detach, err := b.rate(ctx, track.Gone, b.floorDetach)
		if err != nil {
			return nil, fmt.Errorf("the writes of a detach: %w", err)
		}
		if err := b.remove(ctx); err != nil {
			return nil, err
		}
		attaches, detaches = append(attaches, attach), append(detaches, detach)
		_, _ = fmt.Fprintf(progress, "  run %d of %-21s %4d volumes: %7.1f attaches/s %7.1f detaches/s\n", i+1, "the writes alone", volumes, attach, detach)
	}
	return &Floor{stats.SpreadOf(attaches), stats.SpreadOf(detaches)}, nil
}

// rate does something to all of a batch and tells how many were done per second.
func (b *batch) rate(ctx context.Context, what string, do func(ctx context.Context, i int) error) (float64, error) {
	t, err := trackAttachments(ctx, b.w.admin)
	if err != nil {
		return 0, err
	}
	defer t.Stop()
	begun := time.Now()
	if err := world.Each(len(b.names), func(i int) error { return do(ctx, i) }); err != nil {
		return 0, err
	}
	if _, err := t.Await(ctx, b.names, what); err != nil {
		return 0, err
	}
	return float64(len(b.names)) / time.Since(begun).Seconds(), nil
}

func (b *batch) floorAttach(ctx context.Context, i int) error {
	if err := b.attach(ctx, i); err != nil {
		return err
	}
	attachments := b.w.admin.StorageV1().VolumeAttachments()
	if _, err := b.w.admin.CoreV1().PersistentVolumes().Patch(ctx, b.volumes[i], types.MergePatchType, []byte(floorFinalizer), metav1.PatchOptions{}); err != nil {
		return err
	}
	if _, err := attachments.Patch(ctx, b.names[i], types.MergePatchType, []byte(floorFinalizer), metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err := attachments.Patch(ctx, b.names[i], types.MergePatchType, []byte(floorAttached), metav1.PatchOptions{}, "status")
	return err
}

func (b *batch) floorDetach(ctx context.Context, i int) error {
	if err := b.detach(ctx, i); err != nil {
		return err
	}
	_, err := b.w.admin.StorageV1().VolumeAttachments().Patch(ctx, b.names[i], types.MergePatchType, []byte(floorGone), metav1.PatchOptions{})
	return err
}
