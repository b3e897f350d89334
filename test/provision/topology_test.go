package provision

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// bareNode makes a Node that nothing runs on, and its CSINode if keys are given.
func (s *scene) bareNode(name string, keys ...string) {
	s.t.Helper()
	_, err := s.Client.CoreV1().Nodes().Create(s.ctx, &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{Unschedulable: true},
	}, metav1.CreateOptions{})
	s.must(err)
	if len(keys) == 0 {
		return
	}
	_, err = s.Client.StorageV1().CSINodes().Create(s.ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: rig.Driver, NodeID: name, TopologyKeys: keys}}},
	}, metav1.CreateOptions{})
	s.must(err)
}

// selected is the node that a claim says, or "".
func (s *scene) selected(claim *v1.PersistentVolumeClaim) string {
	now := s.Claim(claim.Namespace, claim.Name)
	if now == nil {
		return ""
	}
	return now.Annotations[provisioner.AnnotationSelectedNode]
}

// The selected node is gone, or its CSINode is, and the claim was stuck. The
// scheduler is asked for another node, and nothing is called before.
func TestProvisionerLib121SelectedNodeIsGone(t *testing.T) {
	for what, prepare := range map[string]func(*scene, string){
		"node":    func(*scene, string) {},
		"CSINode": func(s *scene, node string) { s.bareNode(node) },
	} {
		t.Run(strings.ToLower(what), func(t *testing.T) {
			s := inWorld(t)
			prepare(s, s.name)
			claim := s.held("")
			s.selectNode(claim, s.name)
			s.told(claim.Name, provisioner.ReasonProvisioningFailed, "does not exist: the selected node is gone")
			s.await("the selected node is taken off", func() bool { return s.selected(claim) == "" })
			s.never("CreateVolume", claim)
			s.selectNode(claim, "node-3")
			if at := zoneOf(s.bound(claim)); at != inZone("c") {
				t.Errorf("the volume is in %s", at)
			}
			s.once("CreateVolume", claim)
			s.deleteClaim(claim)
			s.gone(claim)
		})
	}
}

// A retry asked for another zone than the first call, since a list was changed in
// place. All calls for a volume ask for the same.
func TestProvisioner1465RetriesAskForTheSameZone(t *testing.T) {
	s := inWorld(t)
	claim := s.held("")
	s.failCreate(claim, simctl.Fault{Code: codes.Aborted, Times: 5})
	s.selectNode(claim, "node-2")
	pv := s.bound(claim)
	if n := s.sameRequests(claim); n != 6 {
		t.Errorf("%d CreateVolume, want 6", n)
	}
	asked := s.request(s.calls("CreateVolume", claim)[0]).AccessibilityRequirements
	if len(asked.Requisite) != 3 || len(asked.Preferred) != 3 || asked.Preferred[0].Segments["example.com/zone"] != "b" || zoneOf(pv) != inZone("b") {
		t.Errorf("asked for %+v, got %s", asked, zoneOf(pv))
	}
	s.deleteClaim(claim)
	s.gone(claim)
}

// A label that comes late to a node was not seen before a restart. The claim is
// told which is missing, and gets its volume once it is there.
func TestProvisioner1478LabelComesLate(t *testing.T) {
	s := inWorld(t)
	s.bareNode(s.name, "example.com/zone")
	claim := s.held("")
	s.selectNode(claim, s.name)
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, `lacks the labels ["example.com/zone"]`)
	s.never("CreateVolume", claim)
	if s.selected(claim) != s.name {
		t.Error("the selected node was taken off: it is not gone")
	}
	_, err := s.Client.CoreV1().Nodes().Patch(s.ctx, s.name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"example.com/zone":"c"}}}`), metav1.PatchOptions{})
	s.must(err)
	if at := zoneOf(s.bound(claim)); at != inZone("c") {
		t.Errorf("the volume is in %s", at)
	}
	s.once("CreateVolume", claim)
	s.deleteClaim(claim)
	s.gone(claim)
}

// A pod waits for its volume, which is made in the zone where the scheduler wants
// the pod, and the pod runs. When pod and claim are deleted the volume goes after
// its detach, by one call.
func TestVolumeIsMadeWhereThePodGoes(t *testing.T) {
	s := inWorld(t)
	claim := s.held("")
	pod := s.podWith(claim, func(spec *v1.PodSpec) { spec.NodeSelector = map[string]string{"example.com/zone": "b"} })
	pv := s.bound(claim)
	if at := zoneOf(pv); at != inZone("b") {
		t.Errorf("the volume is in %s", at)
	}
	running, err := s.AwaitRunning(s.ctx, pod.Name, "")
	s.must(err)
	if running.Spec.NodeName != "node-2" {
		t.Errorf("the pod runs on %s", running.Spec.NodeName)
	}
	s.once("CreateVolume", claim)
	s.deleteClaim(claim)
	s.deletePod(pod)
	s.gone(claim)
	if calls := s.calls("DeleteVolume", claim); len(calls) != 1 || calls[0].Code != "OK" {
		t.Errorf("DeleteVolume: %+v", calls)
	}
}

// The zone of the selected node has no room: the scheduler is asked again, once
// for each time, and no volume is left in between.
func TestExhaustedZoneIsLeft(t *testing.T) {
	s := inWorld(t)
	claim := s.held("")
	f := s.failCreate(claim, simctl.Fault{Code: codes.ResourceExhausted, Message: "no room here"})
	s.selectNode(claim, "node-1")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "no room here")
	s.await("the selected node is taken off", func() bool { return s.selected(claim) == "" })
	f.hits(1)
	f.clear()
	s.selectNode(claim, "node-2")
	if at := zoneOf(s.bound(claim)); at != inZone("b") {
		t.Errorf("the volume is in %s", at)
	}
	if n := len(s.calls("CreateVolume", claim)); n != 2 {
		t.Errorf("%d CreateVolume, want one for each node", n)
	}
	s.deleteClaim(claim)
	s.gone(claim)
}
