package csiprovisioner

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// migration turns what is left of an in-tree plugin into what the CSI driver that
// took its place understands, and back.
type migration struct {
	translator csitrans.CSITranslator
	// inTree is the plugin's name; empty: the driver took no plugin's place.
	inTree string
}

func newMigration(driver string) migration {
	m := migration{translator: csitrans.New()}
	if name, err := m.translator.GetInTreeNameFromCSIName(driver); err == nil && m.translator.IsMigratedCSIDriverByName(driver) {
		m.inTree = name
	}
	return m
}

// names are what the provisioner answers to beside the driver's name.
func (m migration) names() []string {
	if m.inTree == "" {
		return nil
	}
	return []string{m.inTree}
}

// class returns a class as one of the CSI driver's.
func (m migration) class(ctx context.Context, class *storagev1.StorageClass) (csiClass *storagev1.StorageClass, migrated bool, err error) {
	if m.inTree == "" || class.Provisioner != m.inTree {
		return class, false, nil
	}
	translated, err := m.translator.TranslateInTreeStorageClassToCSI(klog.FromContext(ctx), m.inTree, class.DeepCopy())
	if err != nil {
		return nil, true, refusef("StorageClass %q of %s cannot be translated for the CSI driver: %v; correct it in a new class", class.Name, m.inTree, err)
	}
	return translated, true, nil
}

// toInTree returns a PersistentVolume as one of the in-tree plugin's.
func (m migration) toInTree(_ context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	inTree, err := m.translator.TranslateCSIPVToInTree(pv)
	if err != nil {
		return nil, fmt.Errorf("translating PersistentVolume %s to %s: %s", pv.Name, m.inTree, withoutObject(err))
	}
	return inTree, nil
}

// toCSI returns a PersistentVolume as one of the CSI driver's.
func (m migration) toCSI(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if pv.Spec.CSI != nil || pv.Annotations[provisioner.AnnotationMigratedTo] == "" && m.inTree == "" {
		return pv, nil
	}
	translated, err := m.translator.TranslateInTreePVToCSI(klog.FromContext(ctx), pv.DeepCopy())
	if err != nil {
		return nil, fmt.Errorf("translating PersistentVolume %s from %s: %s", pv.Name, m.inTree, withoutObject(err))
	}
	return translated, nil
}

// withoutObject is the text of an error of the translator, which may hold the whole
// PersistentVolume: that is no message for people, and the driver's attributes are
// not for events.
func withoutObject(err error) string {
	text := err.Error()
	from, to := strings.Index(text, "PV:"), strings.LastIndex(text, "Error:")
	if from < 0 || to < from {
		return text
	}
	return text[:from] + text[to+len("Error:"):]
}
