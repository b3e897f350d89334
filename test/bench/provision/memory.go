package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

// Memory is what the programs have beside many bound claims.
type Memory struct {
	// Pairs of a PersistentVolume and a claim are in the cluster.
	Pairs int          `json:"pairs"`
	Sides []SideMemory `json:"sides"`
}

// SideMemory is of one side over its runs, in MiB.
type SideMemory struct {
	Side string `json:"side"`
	Runs int    `json:"runs"`
	// Resident is once it is at rest, Peak the most that it has had by then.
	Resident stats.Spread `json:"residentMiB"`
	Peak     stats.Spread `json:"peakMiB"`
}

// atRest is how long a program has nothing to do before its memory is read: the
// garbage of its start has been collected by then.
const atRest = 30 * time.Second

// memoryBound is far above what the phase takes.
const memoryBound = time.Hour

// remembering measures the memory of the two programs, one at a time.
func remembering(s setting, o options) plan {
	p := plan{name: s.name, title: fmt.Sprintf("%s; %d of each", s.title, o.memory), clusterArgs: s.clusterArgs()}
	p.measure = func(ctx context.Context, w *stage, phase *Phase) error {
		ctx, cancel := context.WithTimeoutCause(ctx, memoryBound, fmt.Errorf("it took longer than %v", memoryBound))
		defer cancel()
		b := w.newBatch(o.memory)
		if err := world.Each(o.memory, func(i int) error { return b.furnish(ctx, i) }); err != nil {
			return err
		}
		phase.Memory = &Memory{Pairs: o.memory}
		samples := map[string][]usage.Memory{}
		for i := range o.runs {
			for _, side := range o.who {
				if side.key == floor.key {
					continue
				}
				now, err := w.memoryOf(ctx, side, s.flagsOf(side))
				if err != nil {
					return fmt.Errorf("run %d of %s: %w", i+1, side.title, err)
				}
				samples[side.title] = append(samples[side.title], now)
				progress(os.Stdout, i, side, fmt.Sprintf("%5d pairs: %6.1f MiB resident, %6.1f MiB at most", o.memory, now.Resident, now.Peak))
			}
		}
		for _, side := range o.who {
			if all := samples[side.title]; len(all) > 0 {
				phase.Memory.Sides = append(phase.Memory.Sides, sideMemory(side, all))
			}
		}
		return nil
	}
	return p
}

func sideMemory(s side, all []usage.Memory) SideMemory {
	m := SideMemory{Side: s.title, Runs: len(all)}
	var resident, peak []float64
	for _, one := range all {
		resident, peak = append(resident, one.Resident), append(peak, one.Peak)
	}
	m.Resident, m.Peak = stats.SpreadOf(resident), stats.SpreadOf(peak)
	return m
}

func progress(w io.Writer, run int, s side, figures string) {
	_, _ = fmt.Fprintf(w, "  run %d of %-22s %s\n", run+1, s.title, figures)
}

// memoryOf starts a side, sees that it works, and reads its memory at rest.
func (w *stage) memoryOf(ctx context.Context, s side, flags []string) (m usage.Memory, err error) {
	p, err := w.start(ctx, s, flags)
	if err != nil {
		return m, err
	}
	err = errors.Join(w.probe(ctx, s), world.Pause(ctx, atRest))
	if err == nil {
		m, err = p.memory()
	}
	return m, errors.Join(err, p.stop())
}

// furnish makes the i-th claim and its volume as they are once all is done: both
// bound, with the annotations and the finalizer that a provisioner and
// kube-controller-manager leave.
func (b *batch) furnish(ctx context.Context, i int) error {
	claims, volumes := b.w.admin.CoreV1().PersistentVolumeClaims(namespace), b.w.admin.CoreV1().PersistentVolumes()
	claim := b.claim(i)
	claim.Annotations = map[string]string{
		"pv.kubernetes.io/bind-completed":               "yes",
		"pv.kubernetes.io/bound-by-controller":          "yes",
		"volume.beta.kubernetes.io/storage-provisioner": driverName,
		"volume.kubernetes.io/storage-provisioner":      driverName,
	}
	// A provisioner names the volume after the claim's UID, which is not known yet.
	uid := types.UID(b.names[i])
	claim.Spec.VolumeName = volumeName(uid)
	claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating claim %s: %w", b.names[i], err)
	}
	volume := volumeFor(claim, time.Now())
	volume.Name = volumeName(uid)
	volume.Finalizers = []string{"external-provisioner.volume.kubernetes.io/finalizer"}
	if volume, err = volumes.Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the volume of claim %s: %w", claim.Name, err)
	}
	volume.Status.Phase = v1.VolumeBound
	if _, err := volumes.UpdateStatus(ctx, volume, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("binding the volume of claim %s: %w", claim.Name, err)
	}
	claim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: volume.Spec.Capacity}
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("binding claim %s: %w", claim.Name, err)
	}
	return nil
}

// probe has a side provision for one claim, which shows that its caches are full
// and that it leads, and takes both away again. The binder is off, so that the
// bench gives the claim the annotation that asks for it.
func (w *stage) probe(ctx context.Context, s side) error {
	ctx, cancel := context.WithTimeoutCause(ctx, warmBound, fmt.Errorf("the first volume of %s took longer than %v", s.title, warmBound))
	defer cancel()
	tracker, err := trackVolumes(ctx, w.admin)
	if err != nil {
		return err
	}
	defer tracker.Stop()
	b := w.newBatch(1)
	claims, volumes := w.admin.CoreV1().PersistentVolumeClaims(namespace), w.admin.CoreV1().PersistentVolumes()
	claim := b.claim(0)
	claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": driverName}
	if claim, err = claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := tracker.Await(ctx, b.names, made); err != nil {
		return err
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := claims.Patch(ctx, claim.Name, types.MergePatchType, free, metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := claims.Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if _, err := volumes.Patch(ctx, volumeName(claim.UID), types.MergePatchType, free, metav1.PatchOptions{}); err != nil {
		return err
	}
	return volumes.Delete(ctx, volumeName(claim.UID), metav1.DeleteOptions{})
}
