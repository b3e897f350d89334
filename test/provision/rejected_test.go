package provision

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// rejectPVs has the API server refuse PersistentVolumes of a class, as the policy
// of a company may. The result ends that.
func (s *scene) rejectPVs(class string) (accept func()) {
	s.t.Helper()
	policies, bindings := s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies(), s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(s.ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"persistentvolumes"}},
			}}}},
			Validations: []admissionv1.Validation{{
				Expression: "object.spec.storageClassName != '" + class + "'", Message: "the company has no such volumes",
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = bindings.Create(s.ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: s.name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.await("PersistentVolumes are rejected", func() bool { return s.rejects(class) })
	return func() {
		s.t.Helper()
		s.must(bindings.Delete(s.ctx, s.name, metav1.DeleteOptions{}))
		s.await("PersistentVolumes are accepted", func() bool { return !s.rejects(class) })
	}
}

func (s *scene) rejects(class string) bool {
	_, err := s.Client.CoreV1().PersistentVolumes().Create(s.ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:               asked("1Gi"),
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/none"}},
		},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err != nil && strings.Contains(err.Error(), "the company has no such volumes")
}

// The API server refuses the PersistentVolume of a volume that was made. The
// claim is told, the volume stays, without a second call, and the claim gets it
// when the refusal ends; but where the claim goes before that, the volume goes.
func TestRejectedPersistentVolume(t *testing.T) {
	s := inWorld(t)
	s.class()
	accept := s.rejectPVs(s.name)
	stays, leaves := s.claim("-stays"), s.claim("-leaves")
	for _, claim := range []*v1.PersistentVolumeClaim{stays, leaves} {
		s.told(claim.Name, provisioner.ReasonProvisioningFailed, "the company has no such volumes")
		if !s.exists(claim) {
			t.Error("the volume was deleted though the claim waits for it")
		}
	}
	s.deleteClaim(leaves)
	s.await("the volume of the claim that is gone is deleted", func() bool { return !s.exists(leaves) })
	accept()
	s.bound(stays)
	s.once("CreateVolume", stays)
	s.once("CreateVolume", leaves)
	s.once("DeleteVolume", leaves)
	s.deleteClaim(stays)
	s.gone(stays)
}
