package provision

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

func volumeID(claim *v1.PersistentVolumeClaim) string { return state.VolumeID(pvName(claim)) }

// TestOneCallEach: on the good path a volume takes one CreateVolume and one
// DeleteVolume.
func TestOneCallEach(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("")
	pv := s.bound(claim)
	if pv.Name != pvName(claim) || pv.Annotations[provisioner.AnnotationProvisionedBy] != pv.Spec.CSI.Driver {
		t.Errorf("PersistentVolume %s has annotations %v", pv.Name, pv.Annotations)
	}
	s.deleteClaim(claim)
	s.gone(claim)
	if n, m := len(s.calls("CreateVolume", claim)), len(s.calls("DeleteVolume", claim)); n != 1 || m != 1 {
		t.Errorf("%d CreateVolume and %d DeleteVolume, want one each", n, m)
	}
}
