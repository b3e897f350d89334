package virtualnode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode/csinodetest"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/mount"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// agentRig is an Agent that runs, with its control socket.
type agentRig struct {
	t      *testing.T
	client kubernetes.Interface
	ctl    *nodectl.Client
	stop   func() // as SIGTERM; waits for the end
}

func startAgent(t *testing.T, cfg Config) *agentRig {
	t.Helper()
	agent, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "vn") // The name of a socket is at most 107 bytes.
	if err != nil {
		t.Fatal(err)
	}
	r := &agentRig{t: t, client: cfg.Client, ctl: nodectl.New("unix://" + filepath.Join(dir, "s"))}
	ctx, cancel := context.WithCancel(context.Background())
	controlCtx, cancelControl := context.WithCancel(context.Background())
	done, control := make(chan error, 1), make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	go func() { control <- agent.ServeControl(controlCtx, filepath.Join(dir, "s")) }()
	stopped := false
	r.stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the agent ended with %v", err)
			}
		case <-time.After(2 * bound):
			t.Error("the agent does not end")
		}
		cancelControl()
		if err := <-control; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	}
	t.Cleanup(r.stop)
	eventually(t, "the control socket answers", func() bool { _, err := r.ctl.Status(t.Context()); return err == nil })
	return r
}

// fakeConfig is for an agent on a fake API that already watches pods when
// anything is created.
func fakeConfig(t *testing.T) Config {
	return Config{
		Name: "n1", RootDir: t.TempDir(), Client: fake.NewClientset(), HousekeepingInterval: 50 * time.Millisecond,
		VolumeHealthInterval: 50 * time.Millisecond, RestartBackoff: 100 * time.Millisecond, LeaseRenewInterval: 50 * time.Millisecond,
		PingTimeout: 200 * time.Millisecond, ShutdownGrace: 5 * time.Second,
	}
}

func (r *agentRig) awaitWatches() {
	r.t.Helper()
	f := r.client.(*fake.Clientset)
	for _, resource := range []string{"pods", "nodes"} {
		eventually(r.t, resource+" are watched", func() bool {
			return slices.ContainsFunc(f.Actions(), func(a clienttesting.Action) bool { return a.Matches("watch", resource) })
		})
	}
}

func (r *agentRig) status() nodectl.Status {
	r.t.Helper()
	st, err := r.ctl.Status(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

// pid returns the process of a pod's first container, 0 if it does not run.
func (r *agentRig) pid(name string) int {
	for _, p := range r.status().Pods {
		if p.Name == name && len(p.Containers) > 0 {
			return p.Containers[0].PID
		}
	}
	return 0
}

func (r *agentRig) pod(name string) *v1.Pod {
	pod, err := r.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return &v1.Pod{}
	}
	return pod
}

func (r *agentRig) createPod(pod *v1.Pod) {
	r.t.Helper()
	if _, err := r.client.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *agentRig) node() *v1.Node {
	node, err := r.client.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
	if err != nil {
		return &v1.Node{}
	}
	return node
}

// scriptPod has a UID of its own: the fake API gives none.
func scriptPod(name, script string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{NodeName: "n1", RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{
			{Name: "c", Image: "none", Command: []string{"/bin/sh", "-c", script}},
		}},
	}
}

func TestAgentRegistersAndHeartbeats(t *testing.T) {
	r := startAgent(t, fakeConfig(t))
	leases := r.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	renewal := func() time.Time {
		lease, err := leases.Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || lease.Spec.RenewTime == nil {
			return time.Time{}
		}
		if *lease.Spec.LeaseDurationSeconds != 40 || *lease.Spec.HolderIdentity != "n1" {
			t.Fatalf("lease: %+v", lease.Spec)
		}
		return lease.Spec.RenewTime.Time
	}
	eventually(t, "the lease is there", func() bool { return !renewal().IsZero() })
	if got := nodeCondition(&r.node().Status, v1.NodeReady); got.Status != v1.ConditionTrue {
		t.Errorf("ready: %+v", got)
	}
	first := renewal()
	eventually(t, "the lease is renewed", func() bool { return renewal().After(first) })
	if err := r.ctl.Inject(t.Context(), nodectl.HungPing); err != nil {
		t.Fatal(err)
	}
	var hung time.Time
	eventually(t, "a hung ping renews nothing", func() bool { // One under way may still land.
		hung = renewal()
		<-time.After(6 * 50 * time.Millisecond)
		return renewal().Equal(hung)
	})
	if err := r.ctl.Release(t.Context(), nodectl.HungPing); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease is renewed again", func() bool { return renewal().After(hung) })
	r.stop()
	if got := nodeCondition(&r.node().Status, v1.NodeReady); got.Status != v1.ConditionFalse || renewal().IsZero() {
		t.Errorf("stopped: ready %+v, lease %v", got, renewal())
	}
}

func TestAgentRegistersAgain(t *testing.T) {
	r := startAgent(t, fakeConfig(t))
	r.awaitWatches()
	eventually(t, "the node is there", func() bool { return r.node().Name != "" })
	if err := r.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is back", func() bool { return nodeCondition(&r.node().Status, v1.NodeReady).Status == v1.ConditionTrue })
}

func TestAgentKeepsForeignStatus(t *testing.T) {
	cfg := fakeConfig(t)
	if _, err := cfg.Client.CoreV1().Nodes().Create(t.Context(), &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"foreign": "label"}},
		Status: v1.NodeStatus{
			Conditions:      []v1.NodeCondition{{Type: "Foreign", Status: v1.ConditionTrue}},
			VolumesAttached: []v1.AttachedVolume{{Name: "v"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := startAgent(t, cfg)
	eventually(t, "the node is ready", func() bool { return nodeCondition(&r.node().Status, v1.NodeReady).Status == v1.ConditionTrue })
	node := r.node()
	if nodeCondition(&node.Status, "Foreign").Status != v1.ConditionTrue || len(node.Status.VolumesAttached) != 1 || node.Labels["foreign"] != "label" {
		t.Errorf("node: %+v", node)
	}
}

func TestAgentRestartsContainers(t *testing.T) {
	r := startAgent(t, fakeConfig(t))
	r.awaitWatches()
	pod := scriptPod("p", "echo $(WHO) >> scratch/runs; cat scratch/runs; exec sleep 1000")
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "WHO", ValueFrom: fieldRef("metadata.name")}}
	pod.Spec.Volumes = []v1.Volume{{Name: "s", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "s", MountPath: "/scratch"}}
	r.createPod(pod)
	eventually(t, "the pod runs", func() bool { return r.pod("p").Status.Phase == v1.PodRunning && r.pid("p") > 0 })
	first := r.pid("p")
	kill(t, first)
	eventually(t, "it runs again", func() bool { pid := r.pid("p"); return pid > 0 && pid != first })
	eventually(t, "the restart is told", func() bool {
		st := r.pod("p").Status.ContainerStatuses[0]
		return st.RestartCount == 1 && st.State.Running != nil && st.LastTerminationState.Terminated != nil
	})
	log := r.status().Pods[0].Containers[0].Log
	eventually(t, "both runs saw the same volume", func() bool {
		b, err := os.ReadFile(log)
		return err == nil && string(b) == "p\np\np\n"
	})
	second := r.pid("p")
	r.stop()
	eventually(t, "nothing is left running", func() bool { return !alive(second) })
}

func TestAgentTellsWhyAContainerDoesNotStart(t *testing.T) {
	r := startAgent(t, fakeConfig(t))
	r.awaitWatches()
	for name, spoil := range map[string]func(*v1.Container){
		"CreateContainerConfigError": func(c *v1.Container) { c.Command = nil },
		"RunContainerError":          func(c *v1.Container) { c.Command = []string{"/no/such/program"} },
		"FailedMount":                func(*v1.Container) {},
		"CrashLoopBackOff":           func(c *v1.Container) { c.Command = []string{"false"} },
	} {
		pod := scriptPod(strings.ToLower(name), "exec sleep 1000")
		spoil(&pod.Spec.Containers[0])
		if name == "FailedMount" {
			pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}}}
		}
		r.createPod(pod)
		eventually(t, "the reason is "+name, func() bool {
			sts := r.pod(pod.Name).Status.ContainerStatuses
			return len(sts) == 1 && sts[0].State.Waiting != nil && sts[0].State.Waiting.Reason == name && sts[0].State.Waiting.Message != ""
		})
	}
}

func TestAgentRunsToCompletion(t *testing.T) {
	r := startAgent(t, fakeConfig(t))
	r.awaitWatches()
	for name, want := range map[string]v1.PodPhase{"true": v1.PodSucceeded, "false": v1.PodFailed} {
		pod := scriptPod("job-"+name, name)
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
		pod.Spec.InitContainers = []v1.Container{{Name: "i", Command: []string{"true"}}}
		r.createPod(pod)
		eventually(t, name+" ends", func() bool { return r.pod(pod.Name).Status.Phase == want })
	}
}

// csiConfig is a driver, a bound claim "data" on its volume "vol", and the
// configuration of an agent that uses them.
func csiConfig(t *testing.T, d *csinodetest.Driver) Config {
	t.Helper()
	d.Name, d.NodeID = "drv", "id-of-n1"
	d.Capabilities = append(d.Capabilities, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	cfg := fakeConfig(t)
	cfg.CSINodeSockets = []string{csinodetest.Start(t, d)}
	_, err := cfg.Client.CoreV1().PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			ClaimRef:               &v1.ObjectReference{UID: "claim"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "drv", VolumeHandle: "vol"}},
		},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = cfg.Client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default", UID: "claim"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = cfg.Client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: mount.AttachmentName("drv", "vol", "n1")},
			Status:     storagev1.VolumeAttachmentStatus{Attached: true},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func writerPod(name string) *v1.Pod {
	pod := scriptPod(name, "while :; do echo x >> data/log; sleep 0.01; done")
	pod.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "d", MountPath: "/data"}}
	return pod
}

// attach does what kube-controller-manager does once the node has said that the
// volume is in use.
func (r *agentRig) attach() {
	r.t.Helper()
	unique := volume.UniqueName("drv", "vol")
	eventually(r.t, "the volume is in use", func() bool { return slices.Contains(r.node().Status.VolumesInUse, unique) })
	node := r.node()
	node.Status.VolumesAttached = []v1.AttachedVolume{{Name: unique}}
	if _, err := r.client.CoreV1().Nodes().UpdateStatus(context.Background(), node, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func TestAgentMountsAndReportsHealth(t *testing.T) {
	d := &csinodetest.Driver{Topology: map[string]string{"example.com/zone": "z"}, MaxVolumes: 3}
	d.Capabilities = []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH}
	r := startAgent(t, csiConfig(t, d))
	r.awaitWatches()
	eventually(t, "the driver is registered", func() bool {
		n, err := r.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && n.Spec.Drivers[0].NodeID == "id-of-n1" && *n.Spec.Drivers[0].Allocatable.Count == 3 && r.node().Labels["example.com/zone"] == "z"
	})
	r.createPod(writerPod("w"))
	r.attach()
	eventually(t, "the pod runs", func() bool { return r.pod("w").Status.Phase == v1.PodRunning })
	d.SetHealth(&csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: "PathDown"})
	eventually(t, "the health is told", func() bool {
		h := r.pod("w").Status.VolumeHealth
		return len(h) == 1 && h[0].Name == "d" && len(h[0].HealthConditions) == 1
	})
	d.Fail("Health", codes.Unavailable) // Not knowing changes nothing.
	d.SetHealth()
	steadily(t, "a failed call changes nothing", func() bool { return len(r.pod("w").Status.VolumeHealth[0].HealthConditions) == 1 })
	d.Fail("Health", codes.OK)
	eventually(t, "the recovery is told", func() bool { return len(r.pod("w").Status.VolumeHealth[0].HealthConditions) == 0 })
	r.stop()
	calls := slices.DeleteFunc(d.Methods(), func(c string) bool { return strings.HasPrefix(c, "Health") })
	if got := strings.Join(calls, ", "); got != "Stage vol, Publish vol, Unpublish vol, Unstage vol" {
		t.Errorf("calls: %s", got)
	}
	if got := r.node().Status.VolumesInUse; len(got) != 0 {
		t.Errorf("in use after the end: %v", got)
	}
}

// TestAgentIsAZombie walks the demonstration's fault with a real process.
func TestAgentIsAZombie(t *testing.T) {
	d := &csinodetest.Driver{}
	r := startAgent(t, csiConfig(t, d))
	r.awaitWatches()
	r.createPod(writerPod("w"))
	r.attach()
	eventually(t, "the pod runs", func() bool { return r.pid("w") > 0 })
	pid := r.pid("w")
	if err := r.ctl.Inject(t.Context(), nodectl.HangKill); err != nil {
		t.Fatal(err)
	}
	if err := r.client.CoreV1().Pods("default").Delete(t.Context(), "w", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent knows that the pod is gone", func() bool { st := r.status(); return len(st.Pods) == 1 && st.Pods[0].Gone })
	steadily(t, "the zombie lives and holds its volume", func() bool {
		return alive(pid) && len(r.node().Status.VolumesInUse) == 1 && len(d.Methods()) == 2
	})
	if err := r.ctl.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is clean", func() bool {
		return !alive(pid) && len(r.node().Status.VolumesInUse) == 0 && len(d.Methods()) == 4 && len(r.status().Pods) == 0
	})
}

func TestAgentAdoptsAfterACrash(t *testing.T) {
	d := &csinodetest.Driver{}
	cfg := csiConfig(t, d)
	cfg.KeepContainers = true // As good as a crash: nothing is stopped.
	r := startAgent(t, cfg)
	r.awaitWatches()
	r.createPod(writerPod("w"))
	r.attach()
	eventually(t, "the pod runs", func() bool { return r.pid("w") > 0 && r.pod("w").Status.Phase == v1.PodRunning })
	pid, boot := r.pid("w"), r.status().BootID
	r.stop()
	if !alive(pid) {
		t.Fatal("the workload did not outlive its agent")
	}
	cfg.KeepContainers = false
	r = startAgent(t, cfg)
	eventually(t, "the pod has a worker again", func() bool { st := r.status(); return len(st.Pods) == 1 && st.Pods[0].Phase == "sync" })
	if r.pid("w") != pid || r.status().BootID != boot || len(d.Methods()) != 2 {
		t.Errorf("pid %d then %d, boot %s then %s, calls %v", pid, r.pid("w"), boot, r.status().BootID, d.Methods())
	}
	r.stop()
	if alive(pid) || len(d.Methods()) != 4 {
		t.Errorf("alive %v, calls %v", alive(pid), d.Methods())
	}
}

// TestAgentKillsLeftovers: the pod was deleted while no agent was there.
func TestAgentKillsLeftovers(t *testing.T) {
	d := &csinodetest.Driver{}
	cfg := csiConfig(t, d)
	cfg.KeepContainers = true
	r := startAgent(t, cfg)
	r.awaitWatches()
	r.createPod(writerPod("w"))
	r.attach()
	eventually(t, "the pod runs", func() bool { return r.pid("w") > 0 })
	pid := r.pid("w")
	r.stop()
	if err := r.client.CoreV1().Pods("default").Delete(t.Context(), "w", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r = startAgent(t, cfg)
	eventually(t, "the node is clean", func() bool {
		return !alive(pid) && len(d.Methods()) == 4 && len(r.node().Status.VolumesInUse) == 0 && len(r.status().Pods) == 0
	})
	eventually(t, "nothing is left on disk", func() bool {
		left, err := filepath.Glob(filepath.Join(cfg.RootDir, "pods", "*"))
		return err == nil && len(left) == 0
	})
}

func TestOneAgentPerRoot(t *testing.T) {
	cfg := fakeConfig(t)
	startAgent(t, cfg)
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "another agent uses") {
		t.Errorf("a second agent: %v", err)
	}
}

func TestControlRefuses(t *testing.T) {
	r := startAgent(t, fakeConfig(t))
	if err := r.ctl.Inject(t.Context(), "nonsense"); err == nil || !strings.Contains(err.Error(), "unknown fault") {
		t.Errorf("nonsense: %v", err)
	}
	for _, f := range nodectl.Lasting() {
		if err := r.ctl.Inject(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.status().Faults; !slices.Equal(got, []nodectl.Fault{nodectl.HangKill, nodectl.HungPing, nodectl.Partition}) {
		t.Errorf("faults: %v", got)
	}
	if err := r.ctl.Release(t.Context()); err != nil || len(r.status().Faults) != 0 {
		t.Errorf("released: %v, %v", err, r.status().Faults)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// alive reports whether a process runs: a zombie of this test does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}
