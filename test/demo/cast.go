package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	database = "db"
	optedOut = "opted-out"
	hostPath = "host-path"
	shared   = "shared"

	firstNode = "node-1"
)

// cast is who plays: the database and the bystanders.
type cast struct {
	world *rig.Rig
	// volumes are what was provisioned, by claim.
	volumes map[string]*v1.PersistentVolume
	// took is how many seconds that was after the claim, by claim.
	took map[string]float64
	// uids are the pods of the database that ran, in order.
	uids []string
	// seen is the UID of each bystander at the start, by pod.
	seen map[string]string
}

// Bystander is a pod that must not move.
type Bystander struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
	Why  string `json:"why"`
	// Said is the event that says so, where something was to be said.
	Said string `json:"said,omitempty"`
}

// enter starts the database on node-1, and the bystanders: two on node-1 whose
// volumes fail there with the database's, one elsewhere on a shared volume.
func enter(ctx context.Context, world *rig.Rig) (*cast, error) {
	c := &cast{world: world, volumes: map[string]*v1.PersistentVolume{}, took: map[string]float64{}, seen: map[string]string{}}
	for _, name := range []string{database, optedOut, hostPath} {
		if err := c.provision(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := c.provision(ctx, shared, v1.ReadWriteMany); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		name, claim, node string
		change            func(*v1.PodTemplateSpec)
	}{
		{database, database, firstNode, func(*v1.PodTemplateSpec) {}},
		{optedOut, optedOut, firstNode, func(t *v1.PodTemplateSpec) { t.Annotations[volume.ScopeKey] = "disabled" }},
		{hostPath, hostPath, firstNode, addHostPath},
		{shared + "-a", shared, firstNode, func(*v1.PodTemplateSpec) {}},
		{shared + "-b", shared, "node-3", func(*v1.PodTemplateSpec) {}},
	} {
		template, err := rig.WriterPod(p.claim, p.node)
		if err != nil {
			return nil, err
		}
		if p.claim == shared {
			// Two writers of one file are no fault on a shared volume, but each
			// has its own.
			template.Spec.Containers[0].Command[1] = "--file=data/" + p.name
			template.Labels["app"] = p.name
		}
		p.change(&template)
		pod, err := world.RunStatefulSet(ctx, p.name, template)
		if err != nil {
			return nil, err
		}
		c.seen[pod.Name] = string(pod.UID)
		fmt.Printf("  %s runs on %s\n", pod.Name, pod.Spec.NodeName)
	}
	c.uids = []string{c.seen[database+"-0"]}
	return c, nil
}

// provision makes a claim and waits for the volume that ha-sidecar provisions.
func (c *cast) provision(ctx context.Context, claim string, modes ...v1.PersistentVolumeAccessMode) error {
	begun := time.Now()
	pv, err := c.world.Provision(ctx, claim, modes...)
	if err != nil {
		return err
	}
	c.volumes[claim], c.took[claim] = pv, time.Since(begun).Seconds()
	what := "claim " + claim
	if claim == database {
		what = "the database's claim"
	}
	fmt.Printf("  %s was provisioned in %.3f s: %s\n", what, c.took[claim], pv.Name)
	return nil
}

// id is the ID at the driver of a claim's volume.
func (c *cast) id(claim string) string { return c.volumes[claim].Spec.CSI.VolumeHandle }

func addHostPath(t *v1.PodTemplateSpec) {
	t.Spec.Volumes = append(t.Spec.Volumes, v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{
		HostPath: &v1.HostPathVolumeSource{Path: "/tmp"},
	}})
	t.Spec.Containers[0].VolumeMounts = append(t.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "host", MountPath: "/host"})
}

// checkBystanders sees that no bystander was touched and that each refusal was
// told.
func (c *cast) checkBystanders(ctx context.Context) ([]Bystander, error) {
	fmt.Println("\nBystanders that did not move:")
	all := []Bystander{
		{Pod: optedOut + "-0", Why: "it is opted out"},
		{Pod: hostPath + "-0", Why: "it also uses a hostPath volume, which cannot be fenced"},
		{Pod: shared + "-b-0", Why: "its node reaches the shared volume"},
	}
	for i := range all {
		b := &all[i]
		pod, err := c.world.Client.CoreV1().Pods(rig.Namespace).Get(ctx, b.Pod, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("bystander %s: %w", b.Pod, err)
		}
		if string(pod.UID) != c.seen[b.Pod] || pod.DeletionTimestamp != nil {
			return nil, fmt.Errorf("bystander %s was touched: it is now %s", b.Pod, pod.UID)
		}
		b.Node = pod.Spec.NodeName
		if !strings.HasPrefix(b.Pod, shared) {
			if err := c.world.Await(ctx, "the refusal of "+b.Pod+" is told", func() bool {
				events := c.world.Events(b.Pod, "FailoverRefused")
				if len(events) > 0 {
					b.Said = events[0].Message
				}
				return len(events) > 0
			}); err != nil {
				return nil, err
			}
		}
		fmt.Printf("  %-14s on %s: %s\n", b.Pod, b.Node, b.Why)
		if b.Said != "" {
			fmt.Printf("  %-14s told: %s\n", "", b.Said)
		}
	}
	return all, c.showShared(ctx)
}

// showShared tells of the pod that is no bystander though it is not the
// database.
func (c *cast) showShared(ctx context.Context) error {
	name := shared + "-a-0"
	pod, err := c.world.AwaitRunning(ctx, name, c.seen[name])
	if err != nil {
		return err
	}
	fmt.Printf("%s moved too, to %s: %s lost the shared volume with the others.\n", name, pod.Spec.NodeName, firstNode)
	return nil
}
