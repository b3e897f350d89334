package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	// burstNodes, the first ones, fail.
	burstNodes = 2
	burstBar   = 3 * time.Second
)

// burstPhase measures many volumes that fail at once on two of the nodes, and
// then a drain of all of them at once.
func burstPhase(volumes int) phase {
	return phase{
		name:  "burst",
		title: fmt.Sprintf("At once: %d volumes on %d of %d nodes, with the brake off (--max-failing-nodes=100%%, --moves-per-minute=100000)", volumes, burstNodes, nodes),
		bound: 10 * time.Minute,
		config: rig.Config{
			Nodes: nodes, Replicas: 1,
			Values: values("failover.maxFailingNodes=100%", "failover.movesPerMinute=100000"),
			// Suspicion outlasts the burst, as with the default of 10 minutes: a
			// node that is trusted again too early gets its pods back.
			SidecarArgs: []string{"--suspect-for=20s", "--workload-free-moves=1000"},
			NodeArgs:    []string{"--volume-health-interval=1s"},
		},
		measure: func(ctx context.Context, world *rig.Rig) (moved, drained []sighting, err error) {
			b, err := enter(ctx, world, volumes, 10*time.Second, func(i int) string { return world.Nodes[i%burstNodes].Name })
			if err != nil {
				return nil, nil, err
			}
			if moved, err = b.burst(ctx); err != nil {
				return nil, nil, err
			}
			if drained, err = b.drainAll(ctx); err != nil {
				return nil, nil, fmt.Errorf("draining all: %w", err)
			}
			changes := world.Observer.Changes()
			return moved, drained, errors.Join(complete(changes, moved, true), complete(changes, drained, false))
		},
		bars: burstBars,
	}
}

// burstBars counts from when the confirmation is due: of each pod's own signal,
// and of the last one.
func burstBars(failovers []Sample) []Bar {
	var last, accepted time.Time
	for _, s := range failovers {
		if s.Signal.After(last) {
			last = *s.Signal
		}
		if s.Accepted.After(accepted) {
			accepted = s.Accepted
		}
	}
	return []Bar{
		{
			What:    fmt.Sprintf("at once: every pod is accepted at most %v beyond the confirmation of its own signal", burstBar),
			Limit:   burstBar.Seconds(),
			Seconds: statsOf(pick(failovers, beyondConfirmation)).Max,
		},
		{
			What:    fmt.Sprintf("at once: all are accepted at most %v beyond the confirmation of the last signal", burstBar),
			Limit:   burstBar.Seconds(),
			Seconds: (accepted.Sub(last) - confirmAfter).Seconds(),
		},
	}
}

// pods are those of all StatefulSets, in their order.
func (b *bench) pods() []*v1.Pod {
	var pods []*v1.Pod
	for _, set := range b.sets {
		pods = append(pods, b.pod(set))
	}
	return pods
}

// burst makes all paths fail and heals them when all pods run elsewhere.
func (b *bench) burst(ctx context.Context) ([]sighting, error) {
	old := b.pods()
	for _, pod := range old {
		if !slices.ContainsFunc(b.Nodes[:burstNodes], func(n *rig.Node) bool { return n.Name == pod.Spec.NodeName }) {
			return nil, fmt.Errorf("pod %s is on %s, which is to take what fails", pod.Name, pod.Spec.NodeName)
		}
	}
	begun := time.Now()
	if err := all(sideBySide, b.sets, func(i int, set string) error { return b.failPath(ctx, set, old[i].Spec.NodeName) }); err != nil {
		return nil, err
	}
	moved, err := b.watchAll(ctx, old, begun)
	if err != nil {
		return nil, err
	}
	if err := all(sideBySide, b.sets, func(i int, set string) error { return b.healPath(ctx, set, old[i].Spec.NodeName) }); err != nil {
		return nil, err
	}
	return moved, b.Await(ctx, "no node is held", func() bool {
		return !slices.ContainsFunc(b.Nodes, func(n *rig.Node) bool { return b.held(n.Name) })
	})
}

// drainAll evicts all pods at once from the nodes that took them.
func (b *bench) drainAll(ctx context.Context) ([]sighting, error) {
	for _, n := range b.Nodes[burstNodes:] {
		if err := b.cordon(ctx, n.Name, true); err != nil {
			return nil, err
		}
	}
	old, begun := b.pods(), time.Now()
	if err := all(len(b.sets), b.sets, func(i int, _ string) error { return b.evict(ctx, old[i]) }); err != nil {
		return nil, err
	}
	return b.watchAll(ctx, old, begun)
}

func (b *bench) watchAll(ctx context.Context, old []*v1.Pod, begun time.Time) (moved []sighting, err error) {
	for _, pod := range old {
		s, err := b.watchMove(ctx, pod, begun)
		if err != nil {
			return nil, err
		}
		moved = append(moved, s)
	}
	return moved, nil
}
