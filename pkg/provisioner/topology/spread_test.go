package topology

import (
	"fmt"
	"hash/fnv"
	"testing"
)

func TestStatefulSetSpreading(t *testing.T) {
	place := func(claim string, n int) int { return spread(claim, n) }
	t.Run("replicas go round", func(t *testing.T) {
		for n := 1; n <= 7; n++ {
			for i := range 50 {
				if got, want := place(fmt.Sprintf("data-web-%d", i+1), n), (place(fmt.Sprintf("data-web-%d", i), n)+1)%n; got != want {
					t.Errorf("replica %d of %d places is at %d, want %d", i+1, n, got, want)
				}
			}
		}
	})
	t.Run("templates of a set agree", func(t *testing.T) {
		for i := range 9 {
			if a, b := place(fmt.Sprintf("data-web-%d", i), 5), place(fmt.Sprintf("my-logs-web-%d", i), 5); a != b {
				t.Errorf("replica %d has its volumes at %d and %d", i, a, b)
			}
		}
	})
	t.Run("a sum that wraps does not put two in one place", func(t *testing.T) {
		h := fnv.New32()
		h.Write([]byte("web"))
		edge := 1<<32 - uint64(h.Sum32())
		for i := edge - 5; i < edge+5; i++ {
			if got, want := place(fmt.Sprintf("data-web-%d", i+1), 3), (place(fmt.Sprintf("data-web-%d", i), 3)+1)%3; got != want {
				t.Errorf("replica %d is at %d, want %d", i+1, got, want)
			}
		}
	})
	sum := func(s string, ordinal uint64, n uint64) int {
		h := fnv.New32()
		h.Write([]byte(s))
		return int((uint64(h.Sum32()) + ordinal) % n)
	}
	for claim, want := range map[string]int{
		"web":                      sum("web", 0, 5),
		"data-web":                 sum("data-web", 0, 5),
		"data-web-x":               sum("data-web-x", 0, 5),
		"data-web-0":               sum("web", 0, 5),
		"data-web-13":              sum("web", 13, 5),
		"web-3":                    sum("web", 3, 5),
		"7":                        sum("7", 0, 5),
		"data-99999999999999":      sum("data-99999999999999", 0, 5),
		"data-web-":                sum("data-web-", 0, 5),
		"data-web--1":              sum("", 1, 5),
		"-3":                       sum("", 3, 5),
		"":                         sum("", 0, 5),
		"data-my-set-of-many-1234": sum("many", 1234, 5),
	} {
		t.Run("claim "+claim, func(t *testing.T) {
			if got := place(claim, 5); got != want {
				t.Errorf("at %d, want %d", got, want)
			}
		})
	}
	if spread("x", 0) != 0 {
		t.Error("no places, and yet one is preferred")
	}
}

// The claim's name decides in a requirement for immediate binding.
func TestPreferredGoesByTheName(t *testing.T) {
	b := of("n1 zone=a zone", "n2 zone=b zone", "n3 zone=c zone").builder(t, false, true)
	seen := map[string]bool{}
	for i := range 3 {
		got, err := b.Requirements(fmt.Sprintf("data-web-%d", i), nil, "")
		if err != nil {
			t.Fatal(err)
		}
		if requisite := said(got.GetRequisite()); requisite != "zone=a; zone=b; zone=c" {
			t.Errorf("requisite is %s", requisite)
		}
		seen[said(got.GetPreferred())] = true
	}
	for _, want := range []string{"zone=a; zone=b; zone=c", "zone=b; zone=c; zone=a", "zone=c; zone=a; zone=b"} {
		if !seen[want] {
			t.Errorf("no replica prefers %s: %v", want, seen)
		}
	}
}
