package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	// sequenceSets take turns: what a node did to one volume is remembered for
	// longer each time, which is not what is measured here.
	sequenceSets = 10
	// sequenceBar is how long an eviction may take beyond the confirmation.
	sequenceBar = 100 * time.Millisecond
	// mayFail is what the brake lets through of the nodes, --max-failing-nodes=40%
	// of five. A node counts until its hold comes off, some seconds after the
	// move.
	mayFail = 2
	// moveBound is how long one move may take, the wait for its turn included.
	moveBound = time.Minute
)

// sequencePhase measures failovers one at a time, and after every other one a
// drain of the same kind of pod: what happens when nobody has to decide.
func sequencePhase(failovers int) phase {
	return phase{
		name:  "sequence",
		title: fmt.Sprintf("One at a time: %d failovers in a row, %d StatefulSets in turn on %d nodes", failovers, sequenceSets, nodes),
		bound: 12 * time.Minute,
		config: rig.Config{
			Nodes: nodes, Replicas: 1, Values: values("failover.maxFailingNodes=40%"),
			SidecarArgs: []string{"--suspect-for=100ms", "--workload-free-moves=1000"},
			NodeArgs:    []string{"--volume-health-interval=500ms"},
		},
		measure: func(ctx context.Context, world *rig.Rig) (moved, drained []sighting, err error) {
			b, err := enter(ctx, world, sequenceSets, time.Second, func(int) string { return "" })
			if err != nil {
				return nil, nil, err
			}
			for i := range failovers {
				s, err := bounded(ctx, i, b.failOver)
				if err != nil {
					return nil, nil, fmt.Errorf("failover %d: %w", i+1, err)
				}
				moved = append(moved, s)
				if i%2 == 0 {
					continue
				}
				if s, err = bounded(ctx, i, b.drain); err != nil {
					return nil, nil, fmt.Errorf("drain after failover %d: %w", i+1, err)
				}
				drained = append(drained, s)
			}
			changes := world.Observer.Changes()
			return moved, drained, errors.Join(complete(changes, moved, true), complete(changes, drained, false))
		},
		bars: func(failovers []Sample) []Bar {
			return []Bar{{
				What:    fmt.Sprintf("one at a time: p99 of signal -> accepted is at most %v beyond the confirmation", sequenceBar),
				Limit:   sequenceBar.Seconds(),
				Seconds: statsOf(pick(failovers, beyondConfirmation)).P99,
			}}
		},
	}
}

func bounded(ctx context.Context, turn int, move func(context.Context, int) (sighting, error)) (sighting, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, moveBound, fmt.Errorf("it took longer than %v", moveBound))
	defer cancel()
	return move(ctx, turn)
}

// next waits until the brake has room for one more node and a StatefulSet, the
// turn-th or one after it, is on a node that is not held.
func (b *bench) next(ctx context.Context, turn int) (set string, err error) {
	err = b.Await(ctx, "a pod is on a node that is not held", func() bool {
		free := map[string]bool{}
		for _, n := range b.Nodes {
			if !b.held(n.Name) {
				free[n.Name] = true
			}
		}
		if len(b.Nodes)-len(free) >= mayFail {
			return false
		}
		for i := range b.sets {
			set = b.sets[(turn+i)%len(b.sets)]
			if pod := b.pod(set); pod != nil && free[pod.Spec.NodeName] {
				return true
			}
		}
		return false
	})
	return set, err
}

func (b *bench) failOver(ctx context.Context, turn int) (sighting, error) {
	set, err := b.next(ctx, turn)
	if err != nil {
		return sighting{}, err
	}
	old, begun := b.pod(set), time.Now()
	if err := b.failPath(ctx, set, old.Spec.NodeName); err != nil {
		return sighting{}, err
	}
	s, err := b.watchMove(ctx, old, begun)
	return s, errors.Join(err, b.healPath(ctx, set, old.Spec.NodeName))
}

func (b *bench) drain(ctx context.Context, turn int) (s sighting, err error) {
	set, err := b.next(ctx, turn)
	if err != nil {
		return s, err
	}
	old := b.pod(set)
	if err := b.cordon(ctx, old.Spec.NodeName, true); err != nil {
		return s, err
	}
	begun := time.Now()
	if err := b.evict(ctx, old); err != nil {
		return s, err
	}
	s, err = b.watchMove(ctx, old, begun)
	return s, errors.Join(err, b.cordon(ctx, old.Spec.NodeName, false))
}
