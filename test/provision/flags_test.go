package provision

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// These share one replica with other flags than all else.
func TestWithFlags(t *testing.T) {
	s := alone(t)
	_, err := s.Restart(s.ctx, "--strict-topology", "--retry-interval-start=20ms", "--retry-interval-max=100ms",
		"--default-fstype=xfs", "--extra-create-metadata", "--controller-publish-readonly")
	s.must(err)
	t.Run("all", func(t *testing.T) {
		for name, test := range map[string]func(*scene){
			"Provisioner154 thirty failures are no reason to give up": thirtyFailures,
			"Provisioner328 the filesystem is that of the flag":       filesystemOfTheFlag,
			"Provisioner1465 strict topology is kept in retries":      strictTopology,
			"metadata and read-only volumes":                          metadataAndReadOnly,
			"a zone without room is left by the pod":                  podLeavesFullZone,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(newScene(t, s.world))
			})
		}
	})
	_, err = s.Restart(s.ctx, "--volume-name-prefix=sim", "--volume-name-uuid-length=16")
	s.must(err)
	t.Run("volumes with names of another form are found again", func(t *testing.T) { otherNames(newScene(t, s.world)) })
	_, err = s.Restart(s.ctx)
	s.must(err)
}

// With another prefix each event of the claim called CreateVolume again, since
// the PersistentVolume was looked for under another name.
func otherNames(s *scene) {
	claim := s.held("")
	name := "sim-" + strings.ReplaceAll(string(claim.UID), "-", "")[:16]
	slow := s.fault(simctl.Fault{Method: "CreateVolume", Volume: name, Delay: simctl.Duration(time.Second), Times: 1})
	s.selectNode(claim, "node-1")
	slow.hits(1)
	s.patchClaim(claim, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"example.com/changed": "1"}}})
	if pv := s.bound(claim); pv.Name != name {
		s.t.Errorf("the PersistentVolume is %s, want %s", pv.Name, name)
	}
	s.deleteClaim(claim)
	s.await("the PersistentVolume is gone", func() bool { return s.pv(name) == nil })
	for method, subject := range map[string]string{"CreateVolume": name, "DeleteVolume": state.VolumeID(name)} {
		calls, err := s.Driver.Calls(s.ctx, method)
		s.must(err)
		n := 0
		for _, c := range calls {
			if c.Name == subject || c.Volume == subject {
				n++
			}
		}
		if n != 1 {
			s.t.Errorf("%d %s", n, method)
		}
	}
}

// After 15 failures the claim was given up.
func thirtyFailures(s *scene) {
	claim := s.held("")
	f := s.failCreate(claim, simctl.Fault{Code: codes.Internal, Times: 30})
	s.selectNode(claim, "node-2")
	f.hits(30)
	s.bound(claim)
	if n := len(s.calls("CreateVolume", claim)); n != 31 {
		s.t.Errorf("%d CreateVolume, want 31", n)
	}
	s.deleteClaim(claim)
	s.gone(claim)
}

// Without a filesystem in the PersistentVolume the kubelet lets fsGroup be.
func filesystemOfTheFlag(s *scene) {
	s.class()
	ext4, err := s.NewClass(s.ctx, s.name+"-ext4", with(map[string]string{"csi.storage.k8s.io/fstype": "ext4"}))
	s.must(err)
	for class, want := range map[string]string{s.name: "xfs", ext4.Name: "ext4"} {
		claim := s.claim("-"+want, func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
		if pv := s.bound(claim); pv.Spec.CSI.FSType != want {
			s.t.Errorf("class %s: fsType %q, want %q", class, pv.Spec.CSI.FSType, want)
		}
		if got := s.request(s.calls("CreateVolume", claim)[0]).VolumeCapabilities[0].Mount.FsType; got != want {
			s.t.Errorf("class %s: the driver is asked for %q, want %q", class, got, want)
		}
		s.deleteClaim(claim)
		s.gone(claim)
	}
}

// With --strict-topology the driver is told of the selected node's zone alone.
func strictTopology(s *scene) {
	claim := s.held("")
	s.failCreate(claim, simctl.Fault{Code: codes.Aborted, Times: 3})
	s.selectNode(claim, "node-3")
	if at := zoneOf(s.bound(claim)); at != inZone("c") {
		s.t.Errorf("the volume is in %s", at)
	}
	if n := s.sameRequests(claim); n != 4 {
		s.t.Errorf("%d CreateVolume, want 4", n)
	}
	asked := s.request(s.calls("CreateVolume", claim)[0]).AccessibilityRequirements
	if len(asked.Requisite) != 1 || len(asked.Preferred) != 1 || asked.Requisite[0].Segments["example.com/zone"] != "c" {
		s.t.Errorf("asked for %+v", asked)
	}
	s.deleteClaim(claim)
	s.gone(claim)
}

func metadataAndReadOnly(s *scene) {
	s.class()
	claim := s.claim("", func(c *v1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	})
	if pv := s.bound(claim); !pv.Spec.CSI.ReadOnly {
		s.t.Error("a volume that can only be read is not marked so")
	}
	asked := s.request(s.calls("CreateVolume", claim)[0])
	for key, want := range map[string]string{"pvc/name": claim.Name, "pvc/namespace": claim.Namespace, "pv/name": pvName(claim)} {
		if got := asked.Parameters["csi.storage.k8s.io/"+key]; got != want {
			s.t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	s.deleteClaim(claim)
	s.gone(claim)
}

// The scheduler likes a node whose zone is full. The claim is told, the scheduler
// asked again, and when it may choose another node, volume and pod go there.
func podLeavesFullZone(s *scene) {
	full, zone := int64(0), simctl.Segments{"example.com/zone": "a"}
	s.must(s.Driver.SetLimit(s.ctx, simctl.Limit{Segments: zone, Bytes: &full}))
	claim := s.held("")
	pod := s.podWith(claim, func(spec *v1.PodSpec) { spec.Affinity = rig.Prefer("node-1") })
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "no room for 1073741824 bytes")
	s.cordon("node-1", true)
	pv := s.bound(claim)
	if at := zoneOf(pv); at != inZone("b") && at != inZone("c") {
		s.t.Errorf("the volume is in %s", at)
	}
	running, err := s.AwaitRunning(s.ctx, pod.Name, "")
	s.must(err)
	if running.Spec.NodeName != nodeIn(zoneOf(pv)) {
		s.t.Errorf("the pod is on %s, and its volume in %s", running.Spec.NodeName, zoneOf(pv))
	}
	s.deleteClaim(claim)
	s.deletePod(pod)
	s.gone(claim)
	s.cordon("node-1", false)
	s.must(s.Driver.SetLimit(s.ctx, simctl.Limit{Segments: zone}))
}

// cordon keeps the scheduler from choosing a node.
func (s *scene) cordon(node string, on bool) {
	s.t.Helper()
	_, err := s.Client.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, on), metav1.PatchOptions{})
	s.must(err)
}
