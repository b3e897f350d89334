package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// Step is one point of a timeline.
type Step struct {
	What string `json:"what"`
	// Seconds since the fault.
	Seconds float64 `json:"seconds"`
}

// Scene is one failover.
type Scene struct {
	Name  string    `json:"name"`
	From  string    `json:"from"`
	To    string    `json:"to"`
	Fault time.Time `json:"fault"`
	Steps []Step    `json:"steps"`
}

func (s *Scene) print() {
	fmt.Printf("\n%s: %s -> %s\n", s.Name, s.From, s.To)
	for _, step := range s.Steps {
		fmt.Printf("  %8.3f s  %s\n", step.Seconds, step.What)
	}
}

// graceful: the storage fails, the node can stop the pod.
func graceful(ctx context.Context, c *cast) (*Scene, error) {
	return c.fail(ctx, "Evicted: the node stops the pod", evictedSteps)
}

// fenced: the storage fails on a node whose agent hangs in killing the
// container, while the old process goes on trying to write.
func fenced(ctx context.Context, c *cast) (*Scene, error) {
	pod := c.world.Pod(rig.Namespace, database+"-0")
	node := c.node(pod.Spec.NodeName)
	fmt.Printf("\nFrom now on the agent of %s hangs in killing a container.\n", node.Name)
	if err := node.Agent.Inject(ctx, nodectl.HangKill); err != nil {
		return nil, err
	}
	scene, err := c.fail(ctx, "Fenced: the node is up, and its agent hangs in killing the container", fencedSteps)
	if err != nil {
		return scene, err
	}
	if err := c.proveFence(ctx, node, string(pod.UID)); err != nil {
		return scene, err
	}
	// The node comes back and cleans up.
	return scene, node.Agent.Release(ctx)
}

// proveFence brings the path back while the old process goes on trying: now
// only the fence keeps it from writing beside the new one.
func (c *cast) proveFence(ctx context.Context, node *rig.Node, uid string) error {
	fmt.Printf("\n%s reaches the storage again, and the old process still tries to write.\n", node.Name)
	before, err := c.attempts(node, uid)
	if err != nil {
		return err
	}
	if err := c.world.Driver.HealPath(ctx, c.id(database), node.Name); err != nil {
		return err
	}
	if err := c.world.Await(ctx, "the old process has tried again", func() bool {
		now, failed := c.attempts(node, uid)
		err = failed
		return failed != nil || now >= before+3
	}); err != nil {
		return err
	}
	if err == nil {
		fmt.Println("  it was refused each time: the volume is no longer published to its node")
	}
	return err
}

// attempts counts the failures that the pod's process has told of.
func (c *cast) attempts(node *rig.Node, uid string) (n int, err error) {
	paths, err := filepath.Glob(node.ContainerLogs(uid))
	if err != nil || len(paths) == 0 {
		return 0, errors.Join(fmt.Errorf("the log of the old process on %s is missing", node.Name), err)
	}
	log, err := os.ReadFile(paths[0])
	return strings.Count(string(log), "\nerror "), err
}

func (c *cast) node(name string) *rig.Node {
	for _, n := range c.world.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// fail makes the path of the database's node to its volumes fail and waits
// until the database writes elsewhere.
func (c *cast) fail(ctx context.Context, name string, steps func(old *v1.Pod) []milestone) (*Scene, error) {
	old := c.world.Pod(rig.Namespace, database+"-0")
	from := old.Spec.NodeName
	fmt.Printf("\n%s fails to reach the storage of %s.\n", from, old.Name)
	scene := &Scene{Name: name, From: from, Fault: time.Now()}
	for _, id := range c.volumesOn(from) {
		if err := c.world.Driver.FailPath(ctx, id, from); err != nil {
			return scene, err
		}
	}
	pod, err := c.world.AwaitRunning(ctx, old.Name, string(old.UID))
	if err != nil {
		return scene, err
	}
	scene.To = pod.Spec.NodeName
	c.uids = append(c.uids, string(pod.UID))
	first, err := c.firstWrite(ctx, pod)
	if err != nil {
		return scene, err
	}
	for _, m := range append(steps(old), movedSteps(old, pod, c.volumes[database].Name)...) {
		at, ok := c.world.Observer.First(scene.Fault, m.match)
		if !ok {
			return scene, fmt.Errorf("the step %q was never seen", m.what)
		}
		scene.Steps = append(scene.Steps, Step{m.what, at.Sub(scene.Fault).Seconds()})
	}
	scene.Steps = append(scene.Steps, Step{"first write on " + scene.To, first.Sub(scene.Fault).Seconds()})
	slices.SortStableFunc(scene.Steps, func(a, b Step) int { return cmp.Compare(a.Seconds, b.Seconds) })
	scene.print()
	if scene.To == from {
		return scene, fmt.Errorf("the database came back on %s", from)
	}
	return scene, nil
}

// volumesOn lists the volumes that fail together: the database's, and on the
// bystanders' node theirs.
func (c *cast) volumesOn(node string) []string {
	ids := []string{c.id(database)}
	if node == firstNode {
		ids = append(ids, c.id(optedOut), c.id(hostPath), c.id(shared))
	}
	return ids
}

// heal brings the storage of the first node back and waits until the node may
// have volumes again: suspicion passes, and it is seen to hold nothing.
func (c *cast) heal(ctx context.Context) error {
	fmt.Printf("\n%s reaches its storage again.\n", firstNode)
	begun := time.Now()
	for _, id := range c.volumesOn(firstNode) {
		if err := c.world.Driver.HealPath(ctx, id, firstNode); err != nil {
			return err
		}
	}
	if err := c.world.Await(ctx, "the hold on "+firstNode+" comes off", func() bool {
		node := c.world.Node(firstNode)
		return node != nil && !held(node)
	}); err != nil {
		return err
	}
	fmt.Printf("  %8.3f s  the hold comes off\n", time.Since(begun).Seconds())
	return nil
}

// remove deletes the database and its claim, and waits until the volume is gone
// at the driver and no other is. It tells how many seconds that took.
func (c *cast) remove(ctx context.Context) (seconds float64, err error) {
	fmt.Println("\nThe database and its claim are deleted.")
	begun := time.Now()
	apps := c.world.Client.AppsV1().StatefulSets(rig.Namespace)
	background := metav1.DeletePropagationBackground
	if err := apps.Delete(ctx, database, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return 0, fmt.Errorf("deleting StatefulSet %s: %w", database, err)
	}
	if err := c.world.Unprovision(ctx, database, c.volumes[database]); err != nil {
		return 0, err
	}
	seconds = time.Since(begun).Seconds()
	fmt.Printf("  %8.3f s  its volume is gone at the driver, and its PersistentVolume too\n", seconds)
	left, err := c.world.DriverVolumes(ctx)
	if err != nil {
		return 0, err
	}
	for claim, pv := range c.volumes {
		if _, there := left[pv.Name]; there == (claim == database) {
			return 0, fmt.Errorf("the volume of %s is at the driver: %v", claim, there)
		}
	}
	if len(left) != len(c.volumes)-1 {
		return 0, fmt.Errorf("the driver has %d volumes, want those of the %d claims that are left", len(left), len(c.volumes)-1)
	}
	fmt.Printf("  the driver has the volumes of the other %d claims, and no more\n", len(left))
	return seconds, nil
}

// firstWrite waits for the pod's first line.
func (c *cast) firstWrite(ctx context.Context, pod *v1.Pod) (at time.Time, err error) {
	writer := string(pod.UID) + "@" + pod.Spec.NodeName
	var bad error
	err = c.world.Await(ctx, "the database writes on "+pod.Spec.NodeName, func() bool {
		lines, err := c.world.Lines(database)
		if bad = err; err != nil {
			return true
		}
		for i := len(lines) - 1; i >= 0 && lines[i].Writer == writer; i-- {
			at = time.Unix(0, lines[i].Nanos)
		}
		return !at.IsZero()
	})
	if bad != nil {
		err = bad
	}
	return at, err
}

// milestone is a step that the observer sees.
type milestone struct {
	what  string
	match func(rig.Change) bool
}

func signalled(old *v1.Pod) []milestone {
	return []milestone{
		{"signal: the pod's status says its volume is inaccessible", func(ch rig.Change) bool {
			p, ok := ch.New.(*v1.Pod)
			return ok && p.UID == old.UID && abnormal(p)
		}},
		{"verdict confirmed, the node held by a taint", func(ch rig.Change) bool {
			n, ok := ch.New.(*v1.Node)
			return ok && n.Name == old.Spec.NodeName && held(n)
		}},
	}
}

func evictedSteps(old *v1.Pod) []milestone {
	return append(signalled(old), milestone{"evicted", deleting(old)})
}

func fencedSteps(old *v1.Pod) []milestone {
	return append(signalled(old),
		milestone{"evicted, to no avail", deleting(old)},
		milestone{"fence recorded", func(ch rig.Change) bool {
			va, ok := ch.New.(*storagev1.VolumeAttachment)
			return ok && va.Spec.NodeName == old.Spec.NodeName && volume.Fenced(va)
		}},
		milestone{"the fence is acknowledged, and so the pod is marked Failed", func(ch rig.Change) bool {
			p, ok := ch.New.(*v1.Pod)
			return ok && p.UID == old.UID && p.Status.Phase == v1.PodFailed
		}})
}

func movedSteps(old, pod *v1.Pod, pv string) []milestone {
	return []milestone{
		{"pod gone", func(ch rig.Change) bool {
			p, ok := ch.Old.(*v1.Pod)
			return ok && ch.Verb == "deleted" && p.UID == old.UID
		}},
		{"VolumeAttachment gone", func(ch rig.Change) bool {
			va, ok := ch.Old.(*storagev1.VolumeAttachment)
			return ok && ch.Verb == "deleted" && va.Spec.NodeName == old.Spec.NodeName && *va.Spec.Source.PersistentVolumeName == pv
		}},
		{"new pod bound to " + pod.Spec.NodeName, func(ch rig.Change) bool {
			p, ok := ch.New.(*v1.Pod)
			return ok && p.UID == pod.UID && p.Spec.NodeName != ""
		}},
		{"attached to " + pod.Spec.NodeName, func(ch rig.Change) bool {
			va, ok := ch.New.(*storagev1.VolumeAttachment)
			return ok && va.Spec.NodeName == pod.Spec.NodeName && *va.Spec.Source.PersistentVolumeName == pv && va.Status.Attached
		}},
		{"running", func(ch rig.Change) bool {
			p, ok := ch.New.(*v1.Pod)
			return ok && p.UID == pod.UID && p.Status.Phase == v1.PodRunning
		}},
	}
}

func deleting(old *v1.Pod) func(rig.Change) bool {
	return func(ch rig.Change) bool {
		p, ok := ch.New.(*v1.Pod)
		return ok && p.UID == old.UID && p.DeletionTimestamp != nil
	}
}

func abnormal(pod *v1.Pod) bool {
	for _, h := range pod.Status.VolumeHealth {
		if len(h.HealthConditions) > 0 {
			return true
		}
	}
	return false
}

func held(node *v1.Node) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == volume.HoldKey(rig.Driver) {
			return true
		}
	}
	return false
}
