package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// needed is a pod with what the controllers read: health the statuses, failover
// and hacontroller closure, scope and placement, attach the volumes.
func needed() *v1.Pod {
	controller := true
	grace := int64(30)
	mounts := []v1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: true}, {Name: "scratch", MountPath: "/tmp"}}
	devices := []v1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "b", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"app": "db"},
			Annotations:     map[string]string{"ha-sidecar.io/failover": "disabled", v1.MirrorPodAnnotationKey: "x"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db", UID: "owner", Controller: &controller}},
			Finalizers:      []string{"f"}, DeletionGracePeriodSeconds: &grace,
		},
		Spec: v1.PodSpec{
			NodeName: "n1", ServiceAccountName: "sa", RestartPolicy: v1.RestartPolicyAlways, SchedulerName: "s", HostNetwork: true,
			NodeSelector: map[string]string{"zone": "a"}, Affinity: &v1.Affinity{}, Tolerations: []v1.Toleration{{Key: "k"}},
			TerminationGracePeriodSeconds: &grace,
			Volumes: []v1.Volume{
				{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}}},
				{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
				{Name: "raw", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/x"}}},
			},
			Containers:     []v1.Container{{Name: "c", VolumeMounts: mounts, VolumeDevices: devices}},
			InitContainers: []v1.Container{{Name: "i", VolumeMounts: mounts}},
			EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
				Name: "debug", VolumeMounts: mounts, VolumeDevices: devices,
			}}},
		},
		Status: v1.PodStatus{
			Phase: v1.PodRunning, PodIP: "1.2.3.4", NominatedNodeName: "n2",
			Conditions:   []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
			VolumeHealth: []v1.PodVolumeHealth{{Name: "data", HealthConditions: []v1.VolumeHealthCondition{{Status: v1.VolumeHealthInaccessible}}}},
			ContainerStatuses: []v1.ContainerStatus{{
				Name: "c", Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
			}},
		},
	}
}

func trimmed(t *testing.T, obj any) any {
	t.Helper()
	out, err := Trim(obj)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTrimKeepsWhatIsNeeded(t *testing.T) {
	if diff := cmp.Diff(needed(), trimmed(t, needed())); diff != "" {
		t.Errorf("Trim() took away what is needed (-want +got):\n%s", diff)
	}
}

func TestTrimDropsTheRest(t *testing.T) {
	pod := needed()
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	pod.Annotations[v1.LastAppliedConfigAnnotation] = "{}"
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "s"}}
	pod.Spec.HostAliases = []v1.HostAlias{{IP: "1.1.1.1"}}
	pod.Spec.DNSConfig = &v1.PodDNSConfig{}
	// Environments may hold secrets.
	env := []v1.EnvVar{{Name: "PASSWORD", Value: "secret"}}
	for _, c := range []*v1.Container{&pod.Spec.Containers[0], &pod.Spec.InitContainers[0]} {
		c.Env, c.Image, c.Args, c.LivenessProbe = env, "i", []string{"a"}, &v1.Probe{}
	}
	pod.Spec.EphemeralContainers[0].Env = env
	pod.Spec.EphemeralContainers[0].Image = "i"
	pod.Status.ContainerStatuses[0].ImageID = "sha256:x"
	pod.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "i"}}
	pod.Status.EphemeralContainerStatuses = []v1.ContainerStatus{{Name: "debug"}}
	want := needed()
	if diff := cmp.Diff(want, trimmed(t, pod)); diff != "" {
		t.Errorf("Trim() left what nobody reads (-want +got):\n%s", diff)
	}

	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}, ManagedFields: []metav1.ManagedFieldsEntry{{}}}}
	node.Spec.Taints = []v1.Taint{{Key: "k"}}
	node.Status.Images = []v1.ContainerImage{{Names: []string{"i"}}}
	node.Status.VolumesInUse = []v1.UniqueVolumeName{"v"}
	node.Status.VolumesAttached = []v1.AttachedVolume{{Name: "v"}}
	node.Status.NodeInfo.BootID = "boot"
	want2 := node.DeepCopy()
	want2.ManagedFields, want2.Status.Images = nil, nil
	if diff := cmp.Diff(want2, trimmed(t, node)); diff != "" {
		t.Errorf("Trim() of a node (-want +got):\n%s", diff)
	}
}

func TestTrimOfOtherThings(t *testing.T) {
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name: "va", ManagedFields: []metav1.ManagedFieldsEntry{{}}, Finalizers: []string{"external-attacher/d"},
			Annotations: map[string]string{"csi.alpha.kubernetes.io/node-id": "n", "ha-sidecar.io/fenced": "{}"},
		},
		Spec:   storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n"},
		Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"a": "b"}},
	}
	want := va.DeepCopy()
	want.ManagedFields = nil
	if diff := cmp.Diff(want, trimmed(t, va)); diff != "" {
		t.Errorf("Trim() of a VolumeAttachment (-want +got):\n%s", diff)
	}
	tombstone := cache.DeletedFinalStateUnknown{Key: "a/b", Obj: needed()}
	if diff := cmp.Diff(tombstone, trimmed(t, tombstone)); diff != "" {
		t.Errorf("Trim() of a tombstone (-want +got):\n%s", diff)
	}
}

func TestReadings(t *testing.T) {
	node := &v1.Node{}
	if NodeReady(node) {
		t.Error("a node without the condition is ready")
	}
	for status, want := range map[v1.ConditionStatus]bool{v1.ConditionTrue: true, v1.ConditionFalse: false, v1.ConditionUnknown: false} {
		node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}, {Type: v1.NodeReady, Status: status}}
		if NodeReady(node) != want {
			t.Errorf("NodeReady() = %v for %s", !want, status)
		}
	}
	node.Status.VolumesInUse = []v1.UniqueVolumeName{"a"}
	if !VolumeInUse(node, "a") || VolumeInUse(node, "b") {
		t.Error("VolumeInUse() is wrong")
	}
	pod := needed()
	if diff := cmp.Diff(map[string]string{"data": "c", "scratch": "b-scratch"}, ClaimNames(pod)); diff != "" {
		t.Errorf("ClaimNames() (-want +got):\n%s", diff)
	}
	for phase, want := range map[v1.PodPhase]bool{v1.PodPending: false, v1.PodRunning: false, v1.PodUnknown: false, v1.PodSucceeded: true, v1.PodFailed: true} {
		pod.Status.Phase = phase
		if Finished(pod) != want {
			t.Errorf("Finished() = %v for %s", !want, phase)
		}
	}
	if !IsMirror(pod) || IsMirror(&v1.Pod{}) {
		t.Error("IsMirror() is wrong")
	}
}
