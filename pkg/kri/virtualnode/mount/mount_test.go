package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode/csinodetest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driverName, nodeName = "drv", "n1"

// rig is a Manager with a fake API, and the node as the API has it.
type rig struct {
	*Manager
	t      testing.TB
	cfg    Config
	driver *csinodetest.Driver
	client *fake.Clientset

	mu      sync.Mutex
	node    *v1.Node
	changed chan struct{}
	refuse  error // of ReportNode
	reports [][]v1.UniqueVolumeName
}

func newRig(t testing.TB, volumes ...string) *rig {
	t.Helper()
	r := &rig{t: t, changed: make(chan struct{}), client: fake.NewClientset()}
	r.driver = &csinodetest.Driver{Name: driverName, NodeID: nodeName, Capabilities: []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
	}}
	r.driver.OnCall = r.checkInUse
	client, err := csinode.New(csinode.Config{Endpoint: csinodetest.Start(t, r.driver), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	info, err := client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.cfg = Config{
		NodeName: nodeName, Root: t.TempDir(), Client: r.client, Drivers: csinode.NewRegistry(), Reporter: r, Watcher: r,
		AttachTimeout: time.Minute, APITimeout: time.Minute,
	}
	r.cfg.Drivers.Add(csinode.Driver{Client: client, Info: info})
	r.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	for _, name := range volumes {
		r.newVolume(name)
		r.attach(name)
	}
	r.restart()
	return r
}

// restart makes a new Manager on the same directory.
func (r *rig) restart() {
	r.t.Helper()
	m, err := New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Manager = m
}

// ReportNode is the API's acknowledgement.
func (r *rig) ReportNode(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return r.refuse
	}
	list := r.InUse()
	r.reports = append(r.reports, list)
	r.Acknowledge(list)
	return nil
}

func (r *rig) refuseReports(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = err
}

func (r *rig) reported() []v1.UniqueVolumeName {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.reports) == 0 {
		return nil
	}
	return r.reports[len(r.reports)-1]
}

// checkInUse is asked by the driver about every call: it must never be called
// for a volume that the API does not know to be in use.
func (r *rig) checkInUse(_ context.Context, call csinodetest.Call) error {
	if !slices.Contains(r.reported(), unique(call.Volume)) {
		r.t.Errorf("%s of %s while volumesInUse is %v", call.Method, call.Volume, r.reported())
	}
	return nil
}

func (r *rig) Node() (*v1.Node, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node, r.changed
}

func (r *rig) setNode(change func(*v1.Node)) {
	r.t.Helper()
	node, err := r.client.CoreV1().Nodes().Get(context.Background(), nodeName, metav1.GetOptions{})
	if err == nil {
		change(node)
		node, err = r.client.CoreV1().Nodes().UpdateStatus(context.Background(), node, metav1.UpdateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = node
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *rig) create(obj any) {
	r.t.Helper()
	var err error
	ctx, opts := context.Background(), metav1.CreateOptions{}
	switch o := obj.(type) {
	case *v1.Node:
		_, err = r.client.CoreV1().Nodes().Create(ctx, o, opts)
	case *v1.PersistentVolume:
		_, err = r.client.CoreV1().PersistentVolumes().Create(ctx, o, opts)
	case *v1.PersistentVolumeClaim:
		_, err = r.client.CoreV1().PersistentVolumeClaims(o.Namespace).Create(ctx, o, opts)
	case *storagev1.VolumeAttachment:
		_, err = r.client.StorageV1().VolumeAttachments().Create(ctx, o, opts)
	case *storagev1.CSIDriver:
		_, err = r.client.StorageV1().CSIDrivers().Create(ctx, o, opts)
	case *v1.Secret:
		_, err = r.client.CoreV1().Secrets(o.Namespace).Create(ctx, o, opts)
	default:
		err = fmt.Errorf("what is %T", o)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func unique(name string) v1.UniqueVolumeName {
	return volume.UniqueName(driverName, volume.Handle(name))
}

func (r *rig) newVolume(name string) {
	r.create(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		ClaimRef:    &v1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: driverName, VolumeHandle: name, FSType: "ext4", VolumeAttributes: map[string]string{"attr": name},
		}},
	}})
	r.create(&v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	})
}

func (r *rig) attach(name string) {
	r.create(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: AttachmentName(driverName, volume.Handle(name), nodeName)},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": name}},
	})
	r.setNode(func(n *v1.Node) {
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, v1.AttachedVolume{Name: unique(name)})
	})
}

func claimPod(uid string, claims ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid)}}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "vol-" + c, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return pod
}

func (r *rig) mustMount(pod *v1.Pod) map[string]string {
	r.t.Helper()
	paths, err := r.Mount(context.Background(), pod)
	if err != nil {
		r.t.Fatal(err)
	}
	return paths
}

func (r *rig) mustUnmount(uid types.UID) {
	r.t.Helper()
	if err := r.Unmount(context.Background(), uid); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wantCalls(want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.driver.Methods()); diff != "" {
		r.t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func (r *rig) wantInUse(names ...string) {
	r.t.Helper()
	want := []v1.UniqueVolumeName{}
	for _, n := range names {
		want = append(want, unique(n))
	}
	if diff := cmp.Diff(want, r.reported()); diff != "" {
		r.t.Errorf("volumesInUse (-want +got):\n%s", diff)
	}
}

func TestMountAndUnmount(t *testing.T) {
	r := newRig(t, "v")
	paths := r.mustMount(claimPod("a", "v"))
	if info, err := os.Stat(paths["vol-v"]); err != nil || !info.IsDir() {
		t.Fatalf("mounted at %q: %v", paths["vol-v"], err)
	}
	r.wantCalls("Stage v", "Publish v")
	r.wantInUse("v")
	stage := r.driver.Calls()[0].Request.(*csi.NodeStageVolumeRequest)
	publish := r.driver.Calls()[1].Request.(*csi.NodePublishVolumeRequest)
	if stage.GetPublishContext()["lun"] != "v" || publish.GetPublishContext()["lun"] != "v" || stage.GetVolumeContext()["attr"] != "v" {
		t.Errorf("contexts: %v %v", stage, publish)
	}
	if publish.GetStagingTargetPath() != stage.GetStagingTargetPath() || publish.GetTargetPath() != paths["vol-v"] {
		t.Errorf("paths: %v %v", stage, publish)
	}
	if mode := stage.GetVolumeCapability().GetAccessMode().GetMode(); mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("access mode %v", mode)
	}
	again := r.mustMount(claimPod("a", "v"))
	if diff := cmp.Diff(paths, again); diff != "" {
		t.Error(diff)
	}
	r.wantCalls("Stage v", "Publish v")
	if got := r.Mounted(); len(got) != 1 || got[0].Pod != "a" || got[0].Name != "vol-v" || got[0].StagingPath != stage.GetStagingTargetPath() {
		t.Errorf("mounted: %+v", got)
	}
	r.mustUnmount("a")
	r.wantCalls("Stage v", "Publish v", "Unpublish v", "Unstage v")
	r.wantInUse()
	if err := r.RemoveLocal("a"); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(r.cfg.Root, "*", "*", "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTwoPodsShareTheStage(t *testing.T) {
	r := newRig(t, "v")
	r.mustMount(claimPod("a", "v"))
	r.mustMount(claimPod("b", "v"))
	r.mustUnmount("a")
	r.wantInUse("v")
	r.wantCalls("Stage v", "Publish v", "Publish v", "Unpublish v")
	r.mustUnmount("b")
	r.wantInUse()
	r.wantCalls("Stage v", "Publish v", "Publish v", "Unpublish v", "Unpublish v", "Unstage v")
}

func TestDriverWithoutStage(t *testing.T) {
	r := newRig(t, "v")
	d, _ := r.cfg.Drivers.Get(driverName)
	d.Capabilities = nil
	r.cfg.Drivers.Add(d)
	r.mustMount(claimPod("a", "v"))
	r.mustUnmount("a")
	r.wantCalls("Publish v", "Unpublish v")
	r.wantInUse()
}

func TestFailuresAreUndone(t *testing.T) {
	for _, method := range []string{"Stage", "Publish"} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t, "v")
			r.driver.Fail(method, codes.Internal)
			if _, err := r.Mount(t.Context(), claimPod("a", "v")); err == nil || !strings.Contains(err.Error(), "volume vol-v: Node"+method+"Volume") {
				t.Fatalf("mount: %v", err)
			}
			r.wantInUse("v")
			r.mustUnmount("a")
			r.wantInUse()
			calls := r.driver.Methods()
			if !slices.Contains(calls, "Unstage v") {
				t.Errorf("a stage that may have happened was not undone: %v", calls)
			}
			if got := slices.Contains(calls, "Unpublish v"); got != (method == "Publish") {
				t.Errorf("unpublished: %v in %v", got, calls)
			}
		})
	}
}

func TestUnmountIsRetried(t *testing.T) {
	for _, method := range []string{"Unpublish", "Unstage"} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t, "v", "w")
			r.mustMount(claimPod("a", "v"))
			r.mustMount(claimPod("b", "w"))
			r.driver.Fail(method, codes.Unavailable)
			for range 2 {
				if err := r.Unmount(t.Context(), "a"); err == nil {
					t.Fatal("unmounted although the driver refused")
				}
				r.wantInUse("v", "w")
			}
			r.driver.Fail(method, codes.OK)
			r.mustUnmount("a")
			r.wantInUse("w")
		})
	}
}

func TestUnmountWaitsForTheReport(t *testing.T) {
	r := newRig(t, "v")
	r.mustMount(claimPod("a", "v"))
	r.refuseReports(errors.New("no API"))
	if err := r.Unmount(t.Context(), "a"); err == nil {
		t.Fatal("unmounted without the API's knowledge")
	}
	r.refuseReports(nil)
	r.mustUnmount("a") // Nothing to unmount is left, only to report.
	r.wantInUse()
	r.wantCalls("Stage v", "Publish v", "Unpublish v", "Unstage v")
}

func TestMountWaitsForTheReport(t *testing.T) {
	r := newRig(t, "v")
	r.refuseReports(errors.New("no API"))
	if _, err := r.Mount(t.Context(), claimPod("a", "v")); err == nil {
		t.Fatal("mounted without the API's knowledge")
	}
	r.wantCalls()
}

func TestRestartKnowsWhatIsMounted(t *testing.T) {
	r := newRig(t, "v")
	paths := r.mustMount(claimPod("a", "v"))
	r.restart()
	if diff := cmp.Diff([]v1.UniqueVolumeName{unique("v")}, r.InUse()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(paths, r.mustMount(claimPod("a", "v"))); diff != "" {
		t.Error(diff)
	}
	r.wantCalls("Stage v", "Publish v")
	r.mustUnmount("a")
	r.wantInUse()
	r.wantCalls("Stage v", "Publish v", "Unpublish v", "Unstage v")
}

// TestRestartAfterStage: the process died between the intent to stage and the
// first publication; nobody but CleanupPods knows of the volume.
func TestRestartAfterStage(t *testing.T) {
	r := newRig(t, "v")
	r.driver.Fail("Stage", codes.DeadlineExceeded)
	if _, err := r.Mount(t.Context(), claimPod("a", "v")); err == nil {
		t.Fatal("mounted")
	}
	r.restart()
	if diff := cmp.Diff([]types.UID{""}, r.Users()); diff != "" {
		t.Error(diff)
	}
	r.mustUnmount("")
	r.wantCalls("Stage v", "Unstage v")
	r.wantInUse()
}

func TestDamagedRecordStopsTheStart(t *testing.T) {
	r := newRig(t, "v")
	r.mustMount(claimPod("a", "v"))
	path := filepath.Join(r.volumeDir(driverName, "v"), recordFile)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(r.cfg); err == nil {
		t.Error("what is mounted was forgotten")
	}
}
