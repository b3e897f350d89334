package failover

import (
	"fmt"
	"testing"
)

// BenchmarkDecide decides on 100 failing volumes of one node among 500.
func BenchmarkDecide(b *testing.B) {
	w := newWorld("policy max-failing-nodes=100% moves-per-minute=1000")
	for i := range 500 {
		w.add(fmt.Sprintf("node n%d", i))
	}
	for i := range 100 {
		w.add(fmt.Sprintf("volume v%d", i), fmt.Sprintf("pod p-%d on=n1 uses=v%d", i, i),
			fmt.Sprintf("attached v%d n1", i), fmt.Sprintf("verdict v%d n1", i))
	}
	s := w.snapshot()
	b.ReportAllocs()
	for b.Loop() {
		if d := Decide(s, w.now); d.Answers[0].Action != ActionMove {
			b.Fatal(d.Answers[0])
		}
	}
}
