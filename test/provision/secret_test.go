package provision

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

func (s *scene) deleteClass() {
	s.t.Helper()
	s.must(s.Client.StorageV1().StorageClasses().Delete(s.ctx, s.name, metav1.DeleteOptions{}))
}

func (s *scene) deleteSecret() {
	s.t.Helper()
	s.must(s.Client.CoreV1().Secrets(rig.Namespace).Delete(s.ctx, s.name, metav1.DeleteOptions{}))
}

// hasSecret reports whether a call had what the scene's secret has.
func hasSecret(c simctl.Call) bool { return slices.Equal(c.SecretKeys, []string{"password"}) }

// The class is deleted before the claim, and DeleteVolume was called without the
// secret that only the class named. The PersistentVolume names it.
func TestProvisioner222ClassDeletedBeforeTheClaim(t *testing.T) {
	s := inWorld(t)
	s.class(with(s.secret(s.name)))
	claim := s.claim("")
	s.bound(claim)
	s.deleteClass()
	s.deleteClaim(claim)
	s.gone(claim)
	for _, method := range []string{"CreateVolume", "DeleteVolume"} {
		if calls := s.calls(method, claim); len(calls) != 1 || !hasSecret(calls[0]) {
			t.Errorf("%s: %+v", method, calls)
		}
	}
}

// The secret is gone too: the driver is called without, for it may not need it.
func TestProvisioner330SecretDeletedBeforeTheClaim(t *testing.T) {
	s := inWorld(t)
	s.class(with(s.secret(s.name)))
	claim := s.claim("")
	s.bound(claim)
	s.deleteClass()
	s.deleteSecret()
	s.deleteClaim(claim)
	s.gone(claim)
	if calls := s.calls("DeleteVolume", claim); len(calls) != 1 || hasSecret(calls[0]) {
		t.Errorf("DeleteVolume: %+v", calls)
	}
}

// Secrets were seen in logs. All calls that have one fail here in turn, and its
// value is in no log, no event and not in the journal.
func TestProvisionerPull604NoSecretIsTold(t *testing.T) {
	s := inWorld(t)
	s.class(later, with(s.secret(s.name)))
	claim := s.claim("")
	hanging := s.failCreate(claim, simctl.Fault{Code: codes.Internal, Message: "the array says no", Hang: true, Times: 1})
	s.failCreate(claim, simctl.Fault{Code: codes.Internal, Times: 2})
	s.selectNode(claim, "node-1")
	hanging.hits(1)
	pages, err := s.Client.CoreV1().ConfigMaps(rig.SidecarNamespace).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	records := 0
	for i := range pages.Items {
		for key, record := range pages.Items[i].Data {
			if key == string(claim.UID) {
				records++
			}
			if strings.Contains(record, canary) {
				t.Error("the value of a secret is in the journal")
			}
		}
	}
	if records != 1 {
		t.Errorf("%d records of the claim while its volume is made, want 1", records)
	}
	s.must(s.Driver.Release(s.ctx, hanging.id))
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "the array says no")
	s.bound(claim)
	failing := s.fault(simctl.Fault{Method: "DeleteVolume", Volume: volumeID(claim), Code: codes.Internal, Times: 1})
	s.deleteClaim(claim)
	failing.hits(1)
	s.gone(claim)
	for _, c := range append(s.calls("CreateVolume", claim), s.calls("DeleteVolume", claim)...) {
		if !hasSecret(c) {
			t.Errorf("a call without the secret: %+v", c)
		}
	}
	s.must(s.secretsTold())
	if !s.logsCall(pvName(claim)) {
		t.Error("no log has a call for the volume, and so none could have had the secret")
	}
}

// logsCall reports whether a log of ha-sidecar has a call to the driver with the
// text in it.
func (s *scene) logsCall(text string) bool {
	s.t.Helper()
	for i := range s.Sidecars {
		for line := range strings.Lines(s.LogOf(fmt.Sprintf("ha-sidecar-%d", i+1))) {
			if strings.Contains(line, "Called the driver") && strings.Contains(line, text) {
				return true
			}
		}
	}
	return false
}

// The secret is missing when the volume is to be made: nothing is called, and all
// goes on when it is there.
func TestSecretIsMissingAtFirst(t *testing.T) {
	s := inWorld(t)
	s.class(with(map[string]string{
		"csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}", "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
	}))
	claim := s.claim("")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "the secret does not exist: create it")
	s.never("CreateVolume", claim)
	s.secret(s.name)
	pv := s.bound(claim)
	if calls := s.calls("CreateVolume", claim); len(calls) != 1 || !hasSecret(calls[0]) {
		t.Errorf("CreateVolume: %+v", calls)
	}
	const prefix = "volume.kubernetes.io/provisioner-deletion-secret-"
	if pv.Annotations[prefix+"name"] != s.name || pv.Annotations[prefix+"namespace"] != rig.Namespace {
		t.Errorf("PersistentVolume has annotations %v", pv.Annotations)
	}
	s.deleteClaim(claim)
	s.gone(claim)
}

// A claim names a VolumeAttributesClass: its parameters are the driver's from the
// beginning, and its name is the PersistentVolume's. One that does not exist yet
// is waited for.
func TestAttributesClassAtCreation(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &s.name })
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "does not exist: create it")
	s.never("CreateVolume", claim)
	_, err := s.Client.StorageV1().VolumeAttributesClasses().Create(s.ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.name}, DriverName: rig.Driver, Parameters: map[string]string{"iops": "100"},
	}, metav1.CreateOptions{})
	s.must(err)
	pv := s.bound(claim)
	if name := pv.Spec.VolumeAttributesClassName; name == nil || *name != s.name {
		t.Errorf("the PersistentVolume names VolumeAttributesClass %v", name)
	}
	if got := s.request(s.calls("CreateVolume", claim)[0]).MutableParameters; got["iops"] != "100" || len(got) != 1 {
		t.Errorf("the driver got mutable parameters %v", got)
	}
	s.deleteClaim(claim)
	s.gone(claim)
}
