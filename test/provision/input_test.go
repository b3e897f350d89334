package provision

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// bad is a claim or a class that will not do.
type bad struct {
	class func(*storagev1.StorageClass)
	claim func(*v1.PersistentVolumeClaim)
	// node is selected for the claim, if it is given.
	node string
	// says is part of what the claim is told.
	says string
}

func badInputs() map[string]bad {
	const prefix = "csi.storage.k8s.io/"
	return map[string]bad{
		"unknown-parameter":  {class: with(map[string]string{prefix + "typo": "x"}), says: `parameter "csi.storage.k8s.io/typo" is not known`},
		"two-filesystems":    {class: with(map[string]string{prefix + "fstype": "ext4", "fstype": "xfs"}), says: "both name a filesystem"},
		"half-a-secret":      {class: with(map[string]string{prefix + "provisioner-secret-name": "x"}), says: "needs both a name and a namespace"},
		"unknown-token":      {class: with(map[string]string{prefix + "provisioner-secret-name": "${pvc.uid}", prefix + "provisioner-secret-namespace": "default"}), says: "tokens that cannot be resolved: ${pvc.uid}"},
		"no-name-of-secrets": {class: with(map[string]string{prefix + "node-stage-secret-name": "${pvc.annotations['x']}", prefix + "node-stage-secret-namespace": "default"}), says: "cannot be"},
		"selector": {claim: func(c *v1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, says: "claim Selector is not supported"},
		"no-such-snapshot": {claim: func(c *v1.PersistentVolumeClaim) {
			group := snapshotGroup
			c.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "nowhere"}
		}, says: "VolumeSnapshot default/nowhere does not exist"},
		"no-such-claim": {claim: clone("nowhere"), says: "default/nowhere does not exist"},
		"other-attributes": {claim: func(c *v1.PersistentVolumeClaim) {
			name := "other-attributes"
			c.Spec.VolumeAttributesClassName = &name
		}, says: `is for driver "other.csi.example.com"`},
		"other-zone": {class: func(c *storagev1.StorageClass) {
			later(c)
			c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
				{Key: "example.com/zone", Values: []string{"b"}}}}}
		}, node: "node-1", says: "none of the allowedTopologies"},
	}
}

// What is wrong is told on the claim, in words that say what to do; the driver is
// not called, and a good claim among bad ones is not delayed.
func TestBadInputIsToldAndHarmsNobody(t *testing.T) {
	s := inWorld(t)
	_, err := s.Client.StorageV1().VolumeAttributesClasses().Create(s.ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "other-attributes"}, DriverName: "other.csi.example.com", Parameters: map[string]string{"a": "b"},
	}, metav1.CreateOptions{})
	s.must(err)
	s.class()
	claims := map[string]*v1.PersistentVolumeClaim{}
	for name, in := range badInputs() {
		class := s.name + "-" + name
		_, err := s.NewClass(s.ctx, class, in.class)
		s.must(err)
		claims[name] = s.claim("-"+name, func(c *v1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = &class
			if in.claim != nil {
				in.claim(c)
			}
		})
		if in.node != "" {
			s.selectNode(claims[name], in.node)
		}
	}
	began := time.Now()
	good := s.claim("-good")
	s.bound(good)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the good claim has its volume after %v", took)
	}
	for name, in := range badInputs() {
		s.told(claims[name].Name, provisioner.ReasonProvisioningFailed, in.says)
	}
	for _, claim := range claims {
		s.never("CreateVolume", claim)
		s.deleteClaim(claim)
	}
	s.deleteClaim(good)
	s.gone(good)
}
