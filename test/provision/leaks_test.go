package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// checkLeaks complains of what must not be left when all tests are over.
func (w *world) checkLeaks() error {
	ctx, cancel := context.WithTimeout(context.Background(), caseBound)
	defer cancel()
	var problem error
	err := w.Await(ctx, "nothing is left over", func() bool {
		for _, look := range []func(context.Context) error{w.volumesLeft, w.recordsLeft, w.finalizersLeft} {
			if problem = look(ctx); problem != nil {
				return false
			}
		}
		return true
	})
	return errors.Join(err, problem, w.secretsTold(), w.panicked())
}

// volumesLeft complains of volumes at the driver that no PersistentVolume accounts
// for, of PersistentVolumes without their volume, and of those that ought to have
// been deleted.
func (w *world) volumesLeft(ctx context.Context) error {
	list, err := w.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	accounted := map[string]bool{}
	for i := range list.Items {
		pv := &list.Items[i]
		if pv.Status.Phase == v1.VolumeReleased || pv.DeletionTimestamp != nil {
			return fmt.Errorf("PersistentVolume %s is left over", pv.Name)
		}
		if src := pv.Spec.CSI; src != nil && src.Driver == rig.Driver {
			accounted[src.VolumeHandle] = true
		}
	}
	volumes, err := w.Driver.Volumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if !accounted[v.ID] {
			return fmt.Errorf("volume %s (%s) is at the driver and no PersistentVolume has it", v.ID, v.Name)
		}
		delete(accounted, v.ID)
	}
	if len(accounted) > 0 {
		return fmt.Errorf("PersistentVolumes without a volume: %v", slices.Sorted(maps.Keys(accounted)))
	}
	return nil
}

// recordsLeft complains of records in the journal: nothing is on its way.
func (w *world) recordsLeft(ctx context.Context) error {
	pages, err := w.Client.CoreV1().ConfigMaps(rig.SidecarNamespace).List(ctx, metav1.ListOptions{LabelSelector: journal.LabelJournal})
	if err != nil {
		return err
	}
	if len(pages.Items) == 0 {
		return errors.New("there is no page of the journal")
	}
	for i := range pages.Items {
		if n := len(pages.Items[i].Data); n > 0 {
			return fmt.Errorf("ConfigMap %s, a page of the journal, has %d records at rest", pages.Items[i].Name, n)
		}
	}
	return nil
}

// finalizersLeft complains of snapshots that are still protected.
func (w *world) finalizersLeft(ctx context.Context) error {
	list, err := w.Dynamic.Resource(snapshots).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if slices.Contains(list.Items[i].GetFinalizers(), source.SnapshotFinalizer) {
			return fmt.Errorf("VolumeSnapshot %s is still protected", list.Items[i].GetName())
		}
	}
	return nil
}

// canary is the value of every secret in these tests.
const canary = "canary-7d1f0c5e-never-to-be-seen"

// secretsTold complains of a secret's value in a log of ha-sidecar, in an event,
// in the journal or in what is known of a volume.
func (w *world) secretsTold() error {
	logs, err := filepath.Glob(filepath.Join(w.dir, "logs", "ha-sidecar-*.log"))
	if err != nil || len(logs) == 0 {
		return fmt.Errorf("looking for logs: %v, %w", logs, err)
	}
	for _, log := range logs {
		content, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		if strings.Contains(string(content), canary) {
			return fmt.Errorf("the value of a secret is in %s", log)
		}
	}
	for _, c := range w.Observer.Changes() {
		if e, ok := c.New.(*v1.Event); ok && strings.Contains(e.Message, canary) {
			return fmt.Errorf("the value of a secret is in an event: %s", e.Message)
		}
	}
	return nil
}

// panicked complains of a panic that was caught, and of a replica that ended.
func (w *world) panicked() error {
	for _, s := range w.living() {
		metrics, err := s.Body("/metrics")
		if err != nil {
			return err
		}
		if !strings.Contains(metrics, "ha_sidecar_provisioner_panics_total 0") {
			return fmt.Errorf("%s has caught a panic, or does not count them", s.Endpoint)
		}
	}
	for _, s := range w.Sidecars {
		select {
		case <-s.Done():
			if err := s.Err(); err != nil && !w.ended[s] {
				return err
			}
		default:
		}
	}
	return nil
}

// living are the replicas that run.
func (w *world) living() (living []*rig.Sidecar) {
	for _, s := range w.Sidecars {
		select {
		case <-s.Done():
		default:
			living = append(living, s)
		}
	}
	return living
}
