package cache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// history makes the given calls from as many goroutines at once as there are
// lists, and returns what was answered and when.
func history(calls [][]op, run func(op) string) []porcupine.Operation {
	var now atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	recorded := make([][]porcupine.Operation, len(calls))
	for client, ops := range calls {
		wg.Go(func() {
			<-start
			for _, o := range ops {
				call := now.Add(1)
				output := run(o)
				recorded[client] = append(recorded[client], porcupine.Operation{
					ClientId: client, Input: o, Call: call, Output: output, Return: now.Add(1),
				})
				runtime.Gosched()
			}
		})
	}
	close(start)
	wg.Wait()
	var all []porcupine.Operation
	for _, r := range recorded {
		all = append(all, r...)
	}
	return all
}

// linearizable fails unless there is an order of the calls, each of them between
// its begin and its end, in which the model answers the same.
func linearizable(t *testing.T, initial func() model, byVolume bool, h []porcupine.Operation) {
	t.Helper()
	m := porcupine.Model{
		Init: func() any { return initial() },
		Step: func(state, input, output any) (bool, any) {
			next := state.(model).clone()
			return next.apply(input.(op)) == output.(string), next
		},
		Equal: func(a, b any) bool { return a.(model).text() == b.(model).text() },
	}
	if byVolume {
		m.Partition = func(h []porcupine.Operation) (parts [][]porcupine.Operation) {
			at := map[string]int{}
			for _, o := range h {
				v := o.Input.(op).volume
				if _, ok := at[v]; !ok {
					at[v] = len(parts)
					parts = append(parts, nil)
				}
				parts[at[v]] = append(parts[at[v]], o)
			}
			return parts
		}
	}
	if porcupine.CheckOperations(m, h) {
		return
	}
	var lines []string
	for _, o := range h {
		lines = append(lines, fmt.Sprintf("%d-%d client %d %+v: %q", o.Call, o.Return, o.ClientId, o.Input, o.Output))
	}
	t.Fatalf("no order explains:\n%s", strings.Join(lines, "\n"))
}

// randomCalls draws n calls for each of the clients. Unlike those of the other
// properties they need not be found again: which calls meet is up to the
// scheduler in any case.
func randomCalls(clients, n int, volumes, nodes, kinds []string) [][]op {
	pick := func(list []string) string { return list[rand.IntN(len(list))] }
	calls := make([][]op, clients)
	for c := range calls {
		for range n {
			o := op{
				kind: pick(kinds), volume: pick(volumes), node: pick(nodes), pod: pick([]string{"p1", "p2"}),
				dev: pick([]string{"d1", "d2"}), yes: rand.IntN(2) == 0, named: true, noSpec: rand.IntN(2) == 0,
			}
			o.list = nodes
			if o.kind == "allMounted" {
				o.list = volumes[rand.IntN(len(volumes)):]
			}
			calls[c] = append(calls[c], o)
		}
	}
	return calls
}

// checkActual makes random calls of new caches, in both modes, in many rounds.
func checkActual(t *testing.T, rounds, clients, n int, byVolume bool, volumes, nodes, kinds []string) {
	epoch := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, mode := range []Mode{Seed, Modern} {
		t.Run(modeNames[mode], func(t *testing.T) {
			for range rounds {
				w := newWorld(t, mode)
				h := history(randomCalls(clients, n, volumes, nodes, kinds), func(o op) string {
					return runActual(w, epoch, o)
				})
				linearizable(t, func() model { return newActualModel(mode) }, byVolume, h)
			}
		})
	}
}

// TestActualIsLinearizableByVolume: long histories, of calls that concern one
// volume each.
func TestActualIsLinearizableByVolume(t *testing.T) {
	checkActual(t, 20, 6, 60, true, []string{"v1", "v2", "v3", "v4", "v5", "v6"}, []string{"n1", "n2"},
		[]string{"add", "attached", "uncertain", "delete", "mounted", "setDetach", "resetDetach", "unreport", "rereport", "state", "exists", "nodes"})
}

// TestActualIsLinearizable: short histories of all calls.
func TestActualIsLinearizable(t *testing.T) {
	kinds := append(append([]string{"delete", "report", "report", "on", "all"}, actualWrites...), actualReads...)
	checkActual(t, 300, 4, 6, false, []string{"v1", "v2"}, []string{"n1", "n2"}, kinds)
}

// TestReportsAreLinearizable: volumes come and go while the reports are taken;
// no change is lost, and none comes twice.
func TestReportsAreLinearizable(t *testing.T) {
	checkActual(t, 300, 4, 7, false, []string{"v1", "v2"}, []string{"n1", "n2"},
		[]string{"attached", "delete", "unreport", "rereport", "setNeeded", "resetNeeded", "report", "report", "reportOf"})
}

func checkDesired(t *testing.T, rounds, clients, n int, byVolume bool, nodes, kinds []string) {
	for range rounds {
		w := NewDesiredStateOfWorld(volume.NewVolumePluginMgr(driver))
		m := newDesiredModel()
		if byVolume { // a node concerns all volumes
			for _, node := range nodes {
				w.AddNode(node)
				m.nodes[node] = true
			}
		}
		h := history(randomCalls(clients, n, []string{"v1", "v2", "v3"}, nodes, kinds), func(o op) string {
			return runDesired(w, o)
		})
		linearizable(t, func() model { return m }, byVolume, h)
	}
}

// TestDesiredIsLinearizableByVolume: long histories, of calls that concern one
// volume each.
func TestDesiredIsLinearizableByVolume(t *testing.T) {
	checkDesired(t, 20, 6, 40, true, []string{"n1", "n2"}, []string{"addPod", "addPod", "deletePod", "setMulti", "multi", "exists", "podsOn"})
}

// TestDesiredIsLinearizable: short histories of all calls.
func TestDesiredIsLinearizable(t *testing.T) {
	kinds := append(append([]string{"addNode", "addNode", "addPod", "addPod"}, desiredWrites...), desiredReads...)
	checkDesired(t, 300, 4, 6, false, []string{"n1", "n2"}, kinds)
}
