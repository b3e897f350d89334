package rig

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodePod is the name of the Pod of the chart's DaemonSet on a node.
func (r *Rig) NodePod(n *Node) string { return r.chart.name + "-" + n.Name }

// newNodePod makes that Pod, unless it is there: it has what the DaemonSet gives it,
// and a gate, so that nobody runs it. Its program runs as a process of the rig.
func (r *Rig) newNodePod(ctx context.Context, n *Node) (*v1.Pod, error) {
	if r.chart.kind != "DaemonSet" {
		return nil, errors.New("the chart renders no DaemonSet: set provisioner.nodeDeployment.enabled=true")
	}
	template := r.chart.template.DeepCopy()
	pod := &v1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = r.NodePod(n), SidecarNamespace
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "rig.ha-sidecar.io/process"}}
	made, err := r.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return pod, nil
	}
	if err != nil {
		return nil, fmt.Errorf("creating the Pod of the chart's DaemonSet on %s: %w", n.Name, err)
	}
	return made, nil
}

// environment is what the kubelet gives the container ha-sidecar of a Pod there.
func (c *chart) environment(pod *v1.Pod, node string) (env []string, err error) {
	fields := map[string]string{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": node}
	for _, e := range c.sidecar.Env {
		value := e.Value
		if e.ValueFrom != nil {
			if e.ValueFrom.FieldRef == nil || fields[e.ValueFrom.FieldRef.FieldPath] == "" {
				return nil, fmt.Errorf("the chart takes %s from %v, which the rig does not know", e.Name, e.ValueFrom)
			}
			value = fields[e.ValueFrom.FieldRef.FieldPath]
		}
		env = append(env, e.Name+"="+value)
	}
	return env, nil
}
