package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// TestPagesTellEachOnce: however long the pages are, and whatever comes and goes
// between them, what was there all the time is told exactly once, in order.
func TestPagesTellEachOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		stable := rapid.SliceOfNDistinct(rapid.IntRange(0, 30), 0, 15, rapid.ID).Draw(rt, "stable")
		told := map[string]int{}
		last, token := "", ""
		for range 50 {
			volumes := withOthers(stable, rapid.SliceOf(rapid.IntRange(0, 30)).Draw(rt, "others"))
			limit := rapid.Int32Range(0, 5).Draw(rt, "limit")
			part, next, err := page(volumes, limit, token)
			if err != nil {
				rt.Fatal(err)
			}
			if limit > 0 && len(part) > int(limit) {
				rt.Fatalf("%d entries on a page of %d", len(part), limit)
			}
			for _, volume := range part {
				if volume.ID <= last {
					rt.Fatalf("%s after %s", volume.ID, last)
				}
				last = volume.ID
				told[volume.ID]++
			}
			if token = next; token == "" {
				break
			}
		}
		if token != "" {
			rt.Fatal("the pages do not end")
		}
		for _, n := range stable {
			if told[name(n)] != 1 {
				rt.Errorf("%s was told %d times", name(n), told[name(n)])
			}
		}
	})
}

func name(n int) string { return fmt.Sprintf("vol-%02d", n) }

func withOthers(stable, others []int) []state.Volume {
	all := slices.Concat(stable, others)
	slices.Sort(all)
	var volumes []state.Volume
	for _, n := range slices.Compact(all) {
		volumes = append(volumes, state.Volume{ID: name(n)})
	}
	return volumes
}

func TestTokens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		id := rapid.String().Draw(rt, "id")
		if got, err := decodeToken(encodeToken(id)); err != nil || got != id {
			rt.Errorf("%q became %q, %v", id, got, err)
		}
	})
	for _, token := range []string{"vol-a", "after", strings.Repeat("x", 1000), tokenPrefix + "*"} {
		if _, err := decodeToken(token); err == nil {
			t.Errorf("%q was taken for a token", token)
		}
	}
}
