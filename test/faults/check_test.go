package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// verdict is what is found of a play: empty for what holds.
type verdict struct {
	W1  string `json:"w1"`
	W2  string `json:"w2"`
	I10 string `json:"i10"`
}

// check looks at the driver's ledger and the API after a play that began then.
func (w *world) check(ctx context.Context, name string, began time.Time) (v verdict, err error) {
	ledger, err := w.Driver.Ledger(ctx)
	if err != nil {
		return v, err
	}
	v.W1 = text(rig.CheckExclusive(ledger))
	v.W2 = text(errors.Join(checkDetached(w.Observer.Changes(), ledger, began), w.checkVolumes(ctx)))
	v.I10 = text(w.checkRest(ctx, name))
	return v, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// checkDetached finds VolumeAttachments that went while the driver still had
// their volume on their node.
func checkDetached(changes []rig.Change, ledger []state.Entry, since time.Time) error {
	for _, ch := range changes {
		va, ok := ch.Old.(*storagev1.VolumeAttachment)
		if !ok || ch.Verb != "deleted" || ch.At.Before(since) {
			continue
		}
		id, published := state.VolumeID(*va.Spec.Source.PersistentVolumeName), false
		for _, e := range ledger {
			if e.Volume == id && e.Node == va.Spec.NodeName && !e.Time.After(ch.At) {
				published = e.Op == state.OpPublish || published && e.Op != state.OpUnpublish
			}
		}
		if published {
			return fmt.Errorf("VolumeAttachment %s went while %s was published to %s", va.Name, id, va.Spec.NodeName)
		}
	}
	return nil
}

// checkRest finds what is left of a play.
func (w *world) checkRest(ctx context.Context, name string) error {
	publications, err := w.Driver.Publications(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(publications, func(p state.Publication) bool { return p.Volume == state.VolumeID(name) }); i >= 0 {
		return fmt.Errorf("the volume is still published to %s", publications[i].Node)
	}
	body, err := w.sidecar.Body("/debug/attach?volume=" + state.VolumeID(name))
	if err != nil {
		return err
	}
	var held struct {
		Holds bool `json:"holds"`
	}
	if err := json.Unmarshal([]byte(body), &held); err != nil {
		return err
	}
	if held.Holds {
		return fmt.Errorf("ha-sidecar still takes the volume for held: %s", body)
	}
	return nil
}

// checkVolumes finds a volume that was provisioned and that no PersistentVolume
// has, and the other way about.
func (w *world) checkVolumes(ctx context.Context) error {
	volumes, err := w.DriverVolumes(ctx)
	if err != nil {
		return err
	}
	pvs, err := w.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	accounted := map[string]bool{}
	for i := range pvs.Items {
		if src := pvs.Items[i].Spec.CSI; src != nil {
			accounted[src.VolumeHandle] = true
		}
	}
	for name, v := range volumes {
		if strings.HasPrefix(name, provisionedPrefix) && !accounted[v.ID] {
			return fmt.Errorf("volume %s of %s has no PersistentVolume", v.ID, name)
		}
		delete(accounted, v.ID)
	}
	for handle := range accounted {
		return fmt.Errorf("a PersistentVolume is of volume %s, which does not exist", handle)
	}
	return nil
}
