package main

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
)

// volumeFor is the PersistentVolume for a claim, with all that a provisioner sets
// but for the finalizer.
func volumeFor(c *v1.PersistentVolumeClaim, now time.Time) *v1.PersistentVolume {
	name := volumeName(c.UID)
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by":                            driverName,
			"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
			"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
		}},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   c.Spec.AccessModes,
			Capacity:                      c.Spec.Resources.Requests,
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			StorageClassName:              className,
			VolumeMode:                    c.Spec.VolumeMode,
			ClaimRef: &v1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: csidriver.VolumeID(name),
				VolumeAttributes: map[string]string{
					"storage.kubernetes.io/csiProvisionerIdentity": fmt.Sprintf("%d-%d-%s", now.UnixMilli(), 1234, driverName),
				},
			}},
		},
	}
}
