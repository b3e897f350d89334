package cache

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// TestManyAtOnce makes all calls of both caches from many goroutines, for the
// race detector and for a deadlock to show, and then looks whether what hangs on
// volumes is what hangs on nodes.
func TestManyAtOnce(t *testing.T) {
	epoch := time.Now()
	for _, mode := range []Mode{Seed, Modern} {
		t.Run(modeNames[mode], func(t *testing.T) {
			w := newWorld(t, mode)
			d := NewDesiredStateOfWorld(volume.NewVolumePluginMgr(driver), WithMode(mode))
			names := func(prefix string, n int) (list []string) {
				for i := range n {
					list = append(list, fmt.Sprint(prefix, i))
				}
				return list
			}
			volumes, nodes := names("v", 40), names("n", 8)
			inBoth := func(kinds [][]string, run func(op)) {
				var wg sync.WaitGroup
				for _, ops := range randomCalls(8, 2000, volumes, nodes, append(kinds[0], kinds[1]...)) {
					wg.Go(func() {
						for _, o := range ops {
							run(o)
						}
					})
				}
				wg.Wait()
			}
			inBoth([][]string{actualWrites, actualReads}, func(o op) { runActual(w, epoch, o) })
			inBoth([][]string{desiredWrites, desiredReads}, func(o op) { runDesired(d, o) })

			var onNodes []AttachedVolume
			for _, n := range nodes {
				onNodes = append(onNodes, w.GetAttachedVolumesForNode(n)...)
			}
			all := w.GetAttachedVolumes()
			seen := map[pairKey]AttachedVolume{}
			for _, a := range all {
				seen[pairKey{string(a.VolumeName), a.NodeName}] = a
			}
			if len(all) == 0 || len(seen) != len(all) || len(onNodes) != len(all) {
				t.Fatalf("%d pairs, %d different ones, %d on nodes", len(all), len(seen), len(onNodes))
			}
			for _, a := range onNodes {
				if seen[pairKey{string(a.VolumeName), a.NodeName}] != a {
					t.Errorf("%+v hangs on its node only", a)
				}
				w.MarkVolumeAsDetached(a.VolumeName, a.NodeName)
			}
			w.want()
		})
	}
}

// TestNoReportIsLost: what is added while the reports are taken is in those, or
// in the next, as Modern promises.
func TestNoReportIsLost(t *testing.T) {
	const rounds, writers = 3000, 3
	w := newWorld(t, Modern)
	w.add("v", "busy", dev)
	for round := range rounds {
		// There is something to report, lest the call return at once.
		w.ok(w.SetNodeStatusUpdateNeeded("busy"))
		handle := fmt.Sprint("v", round)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for writer := range writers {
			wg.Go(func() {
				<-start
				w.AddVolumeNode(specOf(fmt.Sprint(handle, "-", writer)), fmt.Sprint("n", writer), dev)
			})
		}
		close(start)
		first := w.GetVolumesToReportAttached()
		wg.Wait()
		second := w.GetVolumesToReportAttached()
		for writer := range writers {
			name, node := nameOf(fmt.Sprint(handle, "-", writer)), fmt.Sprint("n", writer)
			added := v1.AttachedVolume{Name: name, DevicePath: dev}
			if slices.Contains(first[node], added) == slices.Contains(second[node], added) {
				t.Fatalf("round %d: %s is in both reports, or in none: %v, %v", round, name, first[node], second[node])
			}
			w.DeleteVolumeNode(name, node)
		}
		w.GetVolumesToReportAttached()
	}
}

// TestIdleTickAllocatesNothing. Other goroutines' allocations count as well, so
// that one run of several without any is the proof.
func TestIdleTickAllocatesNothing(t *testing.T) {
	inBothModes(t, func(w *world) {
		for i := range 100 {
			w.add(fmt.Sprint("v", i), fmt.Sprint("n", i%10), dev)
		}
		w.GetVolumesToReportAttached()
		for i := range 10 {
			w.ok(w.ResetNodeStatusUpdateNeeded(fmt.Sprint("n", i)))
		}
		least := testing.AllocsPerRun(100, func() { w.GetVolumesToReportAttached() })
		for range 5 {
			least = min(least, testing.AllocsPerRun(100, func() { w.GetVolumesToReportAttached() }))
		}
		if least != 0 {
			t.Errorf("%v allocations", least)
		}
	})
}

// TestPairIsSmall: one more byte would make it 80.
func TestPairIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(pair{}); size != 64 {
		t.Errorf("a pair takes %d bytes", size)
	}
}
