package virtualnode

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/internal/testcluster"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode/csinodetest"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/mount"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// TestOnARealControlPlane runs a node against kube-apiserver with its Node
// authorizer and NodeRestriction, kube-controller-manager and kube-scheduler. The
// test itself is the attacher.
func TestOnARealControlPlane(t *testing.T) {
	cluster, err := testcluster.Start(t.Context(), testcluster.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	driver := &csinodetest.Driver{Name: "drv", NodeID: "id-of-n1", Capabilities: []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
	}}
	cfg := nodeOf(t, cluster, "n1")
	cfg.CSINodeSockets = []string{csinodetest.Start(t, driver)}
	node := startAgent(t, cfg)
	node.client = cluster.Client() // Assertions are the administrator's.
	eventually(t, "the node is ready and untainted", func() bool {
		n := node.node()
		return nodeCondition(&n.Status, v1.NodeReady).Status == v1.ConditionTrue && len(n.Spec.Taints) == 0
	})
	eventually(t, "the default service account is there", func() bool {
		_, err := node.client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	t.Run("a pod without volumes", func(t *testing.T) { testPlainPod(t, node) })
	t.Run("a pod with a volume", func(t *testing.T) { testVolumePod(t, node, driver) })
	t.Run("a partition", func(t *testing.T) { testPartition(t, node) })
	node.stop()
	if got := nodeCondition(&node.node().Status, v1.NodeReady); got.Status != v1.ConditionFalse {
		t.Errorf("stopped: %+v", got)
	}
}

// nodeOf configures an agent that authenticates as the node.
func nodeOf(t *testing.T, cluster *testcluster.Cluster, name string) Config {
	t.Helper()
	kubeconfig, err := cluster.NodeKubeconfig(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	faults := NewFaults()
	rest.Dial = faults.Dialer((&net.Dialer{}).DialContext)
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Name: name, RootDir: t.TempDir(), Client: client, Faults: faults, HousekeepingInterval: 200 * time.Millisecond,
		VolumeHealthInterval: 100 * time.Millisecond, APITimeout: 5 * time.Second, ShutdownGrace: 5 * time.Second,
	}
}

// scheduled makes a pod that the scheduler has to place.
func scheduled(pod *v1.Pod) *v1.Pod {
	pod.UID, pod.Spec.NodeName = "", ""
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(2))
	return pod
}

func (r *agentRig) gone(name string) bool {
	_, err := r.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (r *agentRig) delete(name string, opts metav1.DeleteOptions) {
	r.t.Helper()
	if err := r.client.CoreV1().Pods("default").Delete(context.Background(), name, opts); err != nil {
		r.t.Fatal(err)
	}
}

func testPlainPod(t *testing.T, node *agentRig) {
	node.createPod(scheduled(scriptPod("plain", "exec sleep 1000")))
	eventually(t, "the pod is ready", func() bool { st := node.pod("plain").Status; return conditionTrue(&st, v1.PodReady) })
	pid := node.pid("plain")
	node.delete("plain", metav1.DeleteOptions{})
	eventually(t, "pod and process are gone", func() bool { return node.gone("plain") && !alive(pid) })
}

// testVolumePod walks the agreement between kubelet and kube-controller-manager:
// in use, attached, staged; unstaged, not in use, detached.
func testVolumePod(t *testing.T, node *agentRig, driver *csinodetest.Driver) {
	makeClaim(t, node.client)
	node.createPod(scheduled(writerPod("writer")))
	vas := node.client.StorageV1().VolumeAttachments()
	name := mount.AttachmentName("drv", "vol", "n1")
	var va *storagev1.VolumeAttachment
	eventually(t, "an attachment is asked for", func() (ok bool) {
		var err error
		va, err = vas.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	})
	if calls := driver.Methods(); len(calls) != 0 {
		t.Errorf("called before the volume is attached: %v", calls)
	}
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": "7"}}
	if _, err := vas.UpdateStatus(t.Context(), va, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is told", func() bool { return len(node.node().Status.VolumesAttached) == 1 })
	told := time.Now()
	eventually(t, "the pod runs", func() bool { return node.pod("writer").Status.Phase == v1.PodRunning })
	t.Logf("running %v after volumesAttached", time.Since(told))
	if got := driver.Calls()[0].Request.(*csi.NodeStageVolumeRequest).GetPublishContext()["lun"]; got != "7" {
		t.Errorf("publish context: %q", got)
	}
	driver.SetHealth(&csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: "PathDown"})
	eventually(t, "the API keeps the health", func() bool {
		h := node.pod("writer").Status.VolumeHealth
		return len(h) == 1 && len(h[0].HealthConditions) == 1
	})
	driver.SetHealth()
	eventually(t, "the API keeps the recovery", func() bool { return len(node.pod("writer").Status.VolumeHealth[0].HealthConditions) == 0 })
	node.delete("writer", metav1.DeleteOptions{})
	eventually(t, "the volume is detached", func() bool {
		_, err := vas.Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) && node.gone("writer") && len(node.node().Status.VolumesInUse) == 0
	})
	var calls []string
	for _, c := range driver.Methods() {
		if !strings.HasPrefix(c, "Health") {
			calls = append(calls, c)
		}
	}
	if got := strings.Join(calls, ", "); got != "Stage vol, Publish vol, Unpublish vol, Unstage vol" {
		t.Errorf("calls: %s", got)
	}
}

func makeClaim(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	_, err := client.CoreV1().PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: "default", Name: "data"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "drv", VolumeHandle: "vol"}},
		},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: modes, VolumeName: "pv", StorageClassName: ptr.To(""), Resources: v1.VolumeResourceRequirements{Requests: size},
			},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testPartition force-deletes a pod behind the node's back.
func testPartition(t *testing.T, node *agentRig) {
	node.createPod(scheduled(scriptPod("island", "exec sleep 1000")))
	eventually(t, "the pod runs", func() bool { return node.pod("island").Status.Phase == v1.PodRunning })
	pid := node.pid("island")
	if err := node.ctl.Inject(t.Context(), nodectl.Partition); err != nil {
		t.Fatal(err)
	}
	node.delete("island", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
	steadily(t, "the process knows nothing of it", func() bool { return alive(pid) && node.gone("island") })
	if err := node.ctl.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is fenced on return", func() bool { return !alive(pid) && len(node.status().Pods) == 0 })
}
