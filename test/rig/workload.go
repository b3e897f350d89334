package rig

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
)

// Namespace of the workloads.
const Namespace = "default"

// NewVolume creates a volume at the driver, its PersistentVolume and a claim
// bound to it, all called name.
func (r *Rig) NewVolume(ctx context.Context, name string, modes ...v1.PersistentVolumeAccessMode) (*v1.PersistentVolume, error) {
	if len(modes) == 0 {
		modes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	const size = 1 << 30
	handle, err := r.Driver.CreateVolume(ctx, name, size)
	if err != nil {
		return nil, fmt.Errorf("creating volume %s at the driver: %w", name, err)
	}
	none := ""
	capacity := v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
	pv, err := r.Client.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: capacity, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			ClaimRef: &v1.ObjectReference{Namespace: Namespace, Name: name},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: Driver, VolumeHandle: handle,
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating PersistentVolume %s: %w", name, err)
	}
	_, err = r.Client.CoreV1().PersistentVolumeClaims(Namespace).Create(ctx, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: &none,
			Resources: v1.VolumeResourceRequirements{Requests: capacity},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating PersistentVolumeClaim %s: %w", name, err)
	}
	return pv, nil
}

// WriterPod is a pod template that appends to a file on the claim: see
// test/writer. It starts on the node, which may be empty, and may go elsewhere
// later.
func WriterPod(claim, node string) (v1.PodTemplateSpec, error) {
	writer, err := Program("writer")
	if err != nil {
		return v1.PodTemplateSpec{}, err
	}
	no := false
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": claim}, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			AutomountServiceAccountToken: &no,
			Containers: []v1.Container{{
				Name: "writer", Image: "none", Command: []string{writer, "--file=data/log"},
				Env: []v1.EnvVar{
					fieldEnv("POD_UID", "metadata.uid"), fieldEnv("NODE_NAME", "spec.nodeName"),
				},
				VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	if node != "" {
		template.Spec.Affinity = Prefer(node)
	}
	return template, nil
}

// Prefer makes a node the first choice of the scheduler, not the only one.
func Prefer(node string) *v1.Affinity {
	return &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
			Weight: 100, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{
				Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node},
			}}},
		}},
	}}
}

func fieldEnv(name, path string) v1.EnvVar {
	return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}
}

// RunStatefulSet creates a StatefulSet of one pod, NAME-0, and waits until it
// runs and is ready.
func (r *Rig) RunStatefulSet(ctx context.Context, name string, template v1.PodTemplateSpec) (*v1.Pod, error) {
	if err := r.CreateStatefulSet(ctx, name, template); err != nil {
		return nil, err
	}
	return r.AwaitRunning(ctx, name+"-0", "")
}

// CreateStatefulSet creates a StatefulSet of one pod.
func (r *Rig) CreateStatefulSet(ctx context.Context, name string, template v1.PodTemplateSpec) error {
	one := int32(1)
	_, err := r.Client.AppsV1().StatefulSets(Namespace).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &one, ServiceName: name, Template: template,
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating StatefulSet %s: %w", name, err)
	}
	return nil
}

// AwaitRunning waits until the pod runs, is ready, and is not the one with the
// UID not.
func (r *Rig) AwaitRunning(ctx context.Context, name, not string) (pod *v1.Pod, err error) {
	err = r.Await(ctx, "pod "+name+" runs", func() bool {
		pod = r.Pod(Namespace, name)
		return pod != nil && string(pod.UID) != not && pod.DeletionTimestamp == nil && podReady(pod)
	})
	return pod, err
}

func podReady(pod *v1.Pod) bool {
	if pod.Status.Phase != v1.PodRunning || kube.Finished(pod) {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
