package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// later makes claims of a class wait for a selected node.
func later(c *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	c.VolumeBindingMode = &mode
}

// with sets parameters of a class.
func with(parameters map[string]string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) { c.Parameters = parameters }
}

// asking makes a claim ask for so much.
func asking(size string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = asked(size)
	}
}

func asked(size string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
}

// held makes a claim that waits for a node, in a class of its own: so a test knows
// the claim's UID, and may prepare the driver, before anything comes of it.
func (s *scene) held(suffix string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	s.t.Helper()
	name := s.name + suffix + "-held"
	_, err := s.NewClass(s.ctx, name, func(c *storagev1.StorageClass) {
		later(c)
		c.ReclaimPolicy = s.policy
	})
	s.must(err)
	return s.claim(suffix, append([]func(*v1.PersistentVolumeClaim){func(c *v1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = &name
	}}, change...)...)
}

// selectNode lets a held claim go, as the scheduler does.
func (s *scene) selectNode(claim *v1.PersistentVolumeClaim, node string) {
	s.t.Helper()
	s.patchClaim(claim, map[string]any{"metadata": map[string]any{"annotations": map[string]any{provisioner.AnnotationSelectedNode: node}}})
}

func (s *scene) patchClaim(claim *v1.PersistentVolumeClaim, change map[string]any) {
	s.t.Helper()
	patch, err := json.Marshal(change)
	s.must(err)
	_, err = s.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(s.ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
}

func (s *scene) patchPV(name string, kind types.PatchType, patch string) {
	s.t.Helper()
	_, err := s.Client.CoreV1().PersistentVolumes().Patch(s.ctx, name, kind, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

func (s *scene) deletePV(name string) {
	s.t.Helper()
	if err := s.Client.CoreV1().PersistentVolumes().Delete(s.ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		s.must(err)
	}
}

// released waits until the PersistentVolume of a claim that is deleted says so.
func (s *scene) released(claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	s.await("the PersistentVolume is Released", func() bool {
		pv := s.pv(pvName(claim))
		return pv != nil && pv.Status.Phase == v1.VolumeReleased
	})
}

// claimGone waits until the claim itself is gone.
func (s *scene) claimGone(claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	s.await("the claim is gone", func() bool {
		now := s.Claim(claim.Namespace, claim.Name)
		return now == nil || now.UID != claim.UID
	})
}

// injected is a fault of the driver.
type injected struct {
	*scene
	id string
}

// fault makes calls to the driver go wrong.
func (s *scene) fault(f simctl.Fault) *injected {
	s.t.Helper()
	id, err := s.Driver.Inject(s.ctx, f)
	s.must(err)
	return &injected{scene: s, id: id}
}

// failCreate makes the CreateVolume of a claim go wrong.
func (s *scene) failCreate(claim *v1.PersistentVolumeClaim, f simctl.Fault) *injected {
	s.t.Helper()
	f.Method, f.Volume = "CreateVolume", pvName(claim)
	return s.fault(f)
}

// hits waits until it has happened so often.
func (f *injected) hits(n int) {
	f.t.Helper()
	_, err := f.Driver.AwaitHits(f.ctx, f.id, n)
	f.must(err)
}

// clear ends it.
func (f *injected) clear() {
	f.t.Helper()
	f.must(f.Driver.Clear(f.ctx, f.id))
}

// request is what a CreateVolume asked for, as far as tests look at it.
type request struct {
	CapacityRange             struct{ RequiredBytes, LimitBytes string }
	Parameters                map[string]string
	MutableParameters         map[string]string
	AccessibilityRequirements struct {
		Requisite, Preferred []struct{ Segments map[string]string }
	}
	VolumeContentSource json.RawMessage
	VolumeCapabilities  []struct {
		Mount struct {
			FsType     string
			MountFlags []string
		}
		AccessMode struct{ Mode string }
	}
}

func (s *scene) request(call simctl.Call) (r request) {
	s.t.Helper()
	s.must(json.Unmarshal(call.Request, &r))
	return r
}

// sameRequests complains of calls that do not ask for the same, and counts them.
func (s *scene) sameRequests(claim *v1.PersistentVolumeClaim) int {
	s.t.Helper()
	calls := s.calls("CreateVolume", claim)
	for _, c := range calls {
		if c.Digest != calls[0].Digest {
			s.t.Errorf("a replay asks for something else:\n%s\n%s", calls[0].Request, c.Request)
		}
	}
	return len(calls)
}

// never complains of calls about the volume of a claim.
func (s *scene) never(method string, claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	if calls := s.calls(method, claim); len(calls) > 0 {
		s.t.Errorf("%s was called %d times for claim %s", method, len(calls), claim.Name)
	}
}

// once complains unless there was one call.
func (s *scene) once(method string, claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	if calls := s.calls(method, claim); len(calls) != 1 {
		s.t.Errorf("%s was called %d times for claim %s, want once", method, len(calls), claim.Name)
	}
}

// controller calls the driver past everybody.
func (s *scene) controller(call func(context.Context, csi.ControllerClient) error) {
	s.t.Helper()
	conn, err := grpc.NewClient("unix://"+s.dir+"/driver.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	defer func() { s.must(conn.Close()) }()
	s.must(call(s.ctx, csi.NewControllerClient(conn)))
}

// deleteVolume deletes a volume at the driver, as an administrator does.
func (s *scene) deleteVolume(id string) {
	s.t.Helper()
	s.controller(func(ctx context.Context, c csi.ControllerClient) error {
		_, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	})
}

// secret makes one with the canary, and gives the class's parameters for it.
func (s *scene) secret(name string) map[string]string {
	s.t.Helper()
	_, err := s.Client.CoreV1().Secrets(rig.Namespace).Create(s.ctx, &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"password": canary},
	}, metav1.CreateOptions{})
	s.must(err)
	return map[string]string{
		"csi.storage.k8s.io/provisioner-secret-name": name, "csi.storage.k8s.io/provisioner-secret-namespace": rig.Namespace,
	}
}

// zoneOf is the zone that a PersistentVolume can be used in, or "".
func zoneOf(pv *v1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	var zones []string
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			zones = append(zones, fmt.Sprint(e.Key, e.Operator, strings.Join(e.Values, ",")))
		}
	}
	slices.Sort(zones)
	return strings.Join(zones, " ")
}

// inZone is the zoneOf of a volume in one zone.
func inZone(zone string) string { return "example.com/zoneIn" + zone }

// podWith is a pod that writes to the volume of a claim.
func (s *scene) podWith(claim *v1.PersistentVolumeClaim, change func(*v1.PodSpec)) *v1.Pod {
	s.t.Helper()
	template, err := rig.WriterPod(claim.Name, "")
	s.must(err)
	change(&template.Spec)
	pod, err := s.Client.CoreV1().Pods(claim.Namespace).Create(s.ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Name, Labels: template.Labels}, Spec: template.Spec,
	}, metav1.CreateOptions{})
	s.must(err)
	return pod
}

func (s *scene) deletePod(pod *v1.Pod) {
	s.t.Helper()
	s.must(s.Client.CoreV1().Pods(pod.Namespace).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}))
}
