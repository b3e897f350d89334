package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	// confirmAfter is how old a report must be before it is acted on.
	confirmAfter = time.Second
	// sideBySide bounds what is done at once to set the scene.
	sideBySide = 10
)

// values of the chart that both worlds share.
func values(more ...string) []string {
	return append([]string{
		"failover.mode=enforce", "failover.fence=unpublish", "failover.holdOff=1s", "health.confirmAfter=" + confirmAfter.String(),
	}, more...)
}

// bench is a world and its StatefulSets, each of one pod on one volume of the
// same name.
type bench struct {
	*rig.Rig
	sets []string
}

// enter creates the StatefulSets and waits until their pods run. node is the
// first choice of the i-th, or empty.
func enter(ctx context.Context, world *rig.Rig, sets int, every time.Duration, node func(i int) string) (*bench, error) {
	b := &bench{Rig: world}
	for i := range sets {
		b.sets = append(b.sets, fmt.Sprintf("db%03d", i))
	}
	err := all(sideBySide, b.sets, func(i int, name string) error {
		if _, err := b.NewVolume(ctx, name); err != nil {
			return err
		}
		template, err := rig.WriterPod(name, node(i))
		if err != nil {
			return err
		}
		container := &template.Spec.Containers[0]
		container.Command = append(container.Command, "--interval="+every.String())
		return b.CreateStatefulSet(ctx, name, template)
	})
	if err != nil {
		return nil, err
	}
	for _, name := range b.sets {
		if _, err := b.AwaitRunning(ctx, podOf(name), ""); err != nil {
			return nil, err
		}
	}
	return b, b.awaitLeases(ctx)
}

// awaitLeases waits until the sidecar can have seen every node renew its Lease:
// before, it does not take a node's word.
func (b *bench) awaitLeases(ctx context.Context) error {
	leases, err := b.Client.CoordinationV1().Leases(v1.NamespaceNodeLease).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watching the nodes' Leases: %w", err)
	}
	defer leases.Stop()
	waiting := map[string]bool{}
	for _, n := range b.Nodes {
		waiting[n.Name] = true
	}
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the Leases of %v to be renewed: %w", slices.Sorted(maps.Keys(waiting)), context.Cause(ctx))
		case e, ok := <-leases.ResultChan():
			if !ok {
				return errors.New("the watch of the nodes' Leases ended")
			}
			if lease, is := e.Object.(*coordinationv1.Lease); is && e.Type == watch.Modified {
				delete(waiting, lease.Name)
			}
		}
	}
	return nil
}

// all does something for each name, width at a time.
func all(width int, names []string, do func(i int, name string) error) error {
	errs := make([]error, len(names))
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = do(i, name)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func podOf(set string) string { return set + "-0" }

func (b *bench) pod(set string) *v1.Pod { return b.Pod(rig.Namespace, podOf(set)) }

func (b *bench) failPath(ctx context.Context, set, node string) error {
	return b.Driver.FailPath(ctx, state.VolumeID(set), node)
}

func (b *bench) healPath(ctx context.Context, set, node string) error {
	return b.Driver.HealPath(ctx, state.VolumeID(set), node)
}

// evict asks a pod to go, as an administrator who drains its node.
func (b *bench) evict(ctx context.Context, pod *v1.Pod) error {
	return b.Client.PolicyV1().Evictions(rig.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: metav1.NewPreconditionDeleteOptions(string(pod.UID)),
	})
}

// cordon keeps new pods off a node, or lets them on again, and waits until
// watchers are told.
func (b *bench) cordon(ctx context.Context, node string, on bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on)
	if _, err := b.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cordoning node %s: %w", node, err)
	}
	return b.Await(ctx, fmt.Sprintf("node %s is seen with unschedulable=%t", node, on), func() bool {
		n := b.Node(node)
		return n != nil && n.Spec.Unschedulable == on && on == slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
			return t.Key == v1.TaintNodeUnschedulable
		})
	})
}

// held reports whether the sidecar keeps pods off the node.
func (b *bench) held(name string) bool {
	node := b.Node(name)
	return node == nil || slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == volume.HoldKey(rig.Driver) })
}

// sighting is a move as it was watched from outside: enough to find its requests
// in the audit log.
type sighting struct {
	pod, from, to string
	// attachment is the VolumeAttachment on the node to.
	attachment string
	begun      time.Time
	// abnormal is when a watch told of the failure, zero for a drain; attached
	// when it told that the volume is attached to the node to.
	abnormal, attached time.Time
}

// watchMove waits until the pod runs elsewhere.
func (b *bench) watchMove(ctx context.Context, old *v1.Pod, begun time.Time) (sighting, error) {
	pod, err := b.AwaitRunning(ctx, old.Name, string(old.UID))
	if err != nil {
		return sighting{}, err
	}
	s := sighting{pod: pod.Name, from: old.Spec.NodeName, to: pod.Spec.NodeName, begun: begun}
	if s.from == s.to {
		return s, fmt.Errorf("pod %s came back on %s", s.pod, s.to)
	}
	va := b.Attachment(pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, s.to)
	if va == nil {
		return s, fmt.Errorf("pod %s runs on %s and no VolumeAttachment says so", s.pod, s.to)
	}
	s.attachment = va.Name
	return s, nil
}
