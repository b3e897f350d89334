package cache

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// load is n volumes, each on one of at most 5000 nodes, twenty to a node.
type load struct {
	specs []*volume.Spec
	nodes []string
}

func newLoad(n int) load {
	var l load
	for i := range min(max(n/20, 1), 5000) {
		l.nodes = append(l.nodes, fmt.Sprintf("node-%05d.cluster.example", i))
	}
	for i := range n {
		l.specs = append(l.specs, specOf(fmt.Sprintf("5b7c2e1a-9f3d-4c60-8a11-%012d", i)))
	}
	return l
}

func (l load) node(i int) string { return l.nodes[i%len(l.nodes)] }

func (l load) fill(w ActualStateOfWorld) {
	for i, spec := range l.specs {
		_, _ = w.AddVolumeNode(spec, l.node(i), "")
	}
}

// atSizes runs a benchmark in both modes with 1000 to 100000 pairs.
func atSizes(b *testing.B, f func(b *testing.B, l load, w ActualStateOfWorld)) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		l := newLoad(n)
		for _, mode := range []Mode{Seed, Modern} {
			b.Run(fmt.Sprintf("%s/pairs=%d", modeNames[mode], n), func(b *testing.B) {
				b.ReportAllocs()
				f(b, l, NewActualStateOfWorld(volume.NewVolumePluginMgr(driver), WithMode(mode)))
			})
		}
	}
}

func BenchmarkOneNode(b *testing.B) {
	atSizes(b, func(b *testing.B, l load, w ActualStateOfWorld) {
		l.fill(w)
		for i := 0; b.Loop(); i++ {
			w.GetAttachedVolumesForNode(l.node(i))
		}
	})
}

func BenchmarkIdleTick(b *testing.B) {
	atSizes(b, func(b *testing.B, l load, w ActualStateOfWorld) {
		l.fill(w)
		w.GetVolumesToReportAttached()
		for _, n := range l.nodes {
			_ = w.ResetNodeStatusUpdateNeeded(n)
		}
		for b.Loop() {
			w.GetVolumesToReportAttached()
		}
	})
}

// BenchmarkTick: one node has changed since the last tick.
func BenchmarkTick(b *testing.B) {
	atSizes(b, func(b *testing.B, l load, w ActualStateOfWorld) {
		l.fill(w)
		w.GetVolumesToReportAttached()
		for _, n := range l.nodes {
			_ = w.ResetNodeStatusUpdateNeeded(n)
		}
		for i := 0; b.Loop(); i++ {
			_ = w.SetNodeStatusUpdateNeeded(l.node(i))
			w.GetVolumesToReportAttached()
			_ = w.ResetNodeStatusUpdateNeeded(l.node(i))
		}
	})
}

// BenchmarkAddDelete deletes and adds pairs of a full cache: ns/op is for both.
func BenchmarkAddDelete(b *testing.B) {
	for _, writers := range []int{1, 8} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			atSizes(b, func(b *testing.B, l load, w ActualStateOfWorld) {
				l.fill(w)
				b.ResetTimer()
				var wg sync.WaitGroup
				for writer := range writers {
					wg.Go(func() {
						for i := writer; i < b.N; i += writers {
							k := i % len(l.specs)
							w.DeleteVolumeNode(nameOf(l.specs[k].PersistentVolume.Spec.CSI.VolumeHandle), l.node(k))
							_, _ = w.AddVolumeNode(l.specs[k], l.node(k), "")
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// BenchmarkFill tells bytes/entry, of the cache alone, names included, and the
// time per entry.
func BenchmarkFill(b *testing.B) {
	atSizes(b, func(b *testing.B, l load, _ ActualStateOfWorld) {
		mode := Seed
		if b.Name()[len("BenchmarkFill/"):][0] == 'M' {
			mode = Modern
		}
		heap(b, len(l.specs), func() any {
			w := NewActualStateOfWorld(volume.NewVolumePluginMgr(driver), WithMode(mode))
			l.fill(w)
			return w
		})
	})
}

func BenchmarkFillDesired(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		l := newLoad(n)
		pods := make([]string, n)
		for i := range pods {
			pods[i] = fmt.Sprintf("0f8fad5b-d9cb-469f-a165-%012d", i)
		}
		b.Run(fmt.Sprintf("pairs=%d", n), func(b *testing.B) {
			heap(b, n, func() any {
				w := NewDesiredStateOfWorld(volume.NewVolumePluginMgr(driver))
				for _, node := range l.nodes {
					w.AddNode(node)
				}
				for i, spec := range l.specs {
					_, _ = w.AddPod(types.UniquePodName(pods[i]), nil, spec, l.node(i))
				}
				return w
			})
		})
	}
}

// heap reports what build leaves on the heap, by entry.
func heap(b *testing.B, entries int, build func() any) {
	var before, after runtime.MemStats
	kept := new(any)
	for b.Loop() {
		b.StopTimer()
		*kept = nil
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		*kept = build()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(entries), "bytes/entry")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*entries), "ns/entry")
	runtime.KeepAlive(kept)
}
