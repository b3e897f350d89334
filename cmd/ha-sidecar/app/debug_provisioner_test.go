package app

import (
	"testing"
)

// TestListsOfThePageAreBounded: the first are kept, of those that are wanted.
func TestListsOfThePageAreBounded(t *testing.T) {
	for _, c := range []struct{ n, kept, leftOut int }{{0, 0, 0}, {2, 1, 0}, {2 * maxListed, maxListed, 0}, {2*maxListed + 7, maxListed, 3}} {
		var all []int
		for i := range c.n {
			all = append(all, i)
		}
		kept, leftOut := atMost(all, func(i int) bool { return i%2 == 1 })
		if kept == nil || len(kept) != c.kept || leftOut != c.leftOut {
			t.Errorf("of %d: %d kept, %d left out; want %+v", c.n, len(kept), leftOut, c)
		}
		if len(kept) > 0 && (kept[0] != 1 || kept[len(kept)-1] != 2*len(kept)-1) {
			t.Errorf("kept are %v", kept)
		}
	}
}
