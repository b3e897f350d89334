package topology

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func here(t *testing.T, segments map[string]string) *Here {
	t.Helper()
	h, err := NewHere(segments)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func selects(key string, values ...string) v1.TopologySelectorTerm {
	return v1.TopologySelectorTerm{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: key, Values: values}}}
}

func TestRequirementsOfOneNode(t *testing.T) {
	h := here(t, map[string]string{"zone": "a", "node": "n1"})
	only := []*csi.Topology{{Segments: map[string]string{"zone": "a", "node": "n1"}}}
	for name, c := range map[string]struct {
		allowed []v1.TopologySelectorTerm
		fails   string
	}{
		"any":                {},
		"empty terms":        {allowed: []v1.TopologySelectorTerm{{}}},
		"the node's zone":    {allowed: []v1.TopologySelectorTerm{selects("zone", "b", "a")}},
		"one of the terms":   {allowed: []v1.TopologySelectorTerm{selects("zone", "b"), selects("node", "n1")}},
		"another zone":       {allowed: []v1.TopologySelectorTerm{selects("zone", "b")}, fails: "none of the allowedTopologies"},
		"a key it has not":   {allowed: []v1.TopologySelectorTerm{selects("rack", "1")}, fails: "none of the allowedTopologies"},
		"nothing can fulfil": {allowed: []v1.TopologySelectorTerm{selects("zone")}, fails: "admit no node at all"},
	} {
		got, err := h.Requirements("data-0", c.allowed, "node-1")
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v, %v; want an error with %q", name, got, err, c.fails)
			}
			continue
		}
		want := &csi.TopologyRequirement{Requisite: only, Preferred: only}
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestNoNodeIsThere(t *testing.T) {
	for want, segments := range map[string]map[string]string{
		"does not say where": nil,
		"no label key":       {"a b": "x"},
		"no label value":     {"zone": "a b"},
	} {
		if _, err := NewHere(segments); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewHere(%v) = %v, want %q", segments, err, want)
		}
	}
}

// TestVolumesBelongToTheirNode: whatever the driver says of a volume that it made
// by our requirements, as a whole or with fewer keys, the volume is ours; and one
// that another node made is not, unless it says that it can be used here too.
func TestVolumesBelongToTheirNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.StringMatching(`[a-c]`)
		mine := rapid.MapOfN(label, label, 1, 3).Draw(t, "mine")
		h, err := NewHere(mine)
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]string{}
		for key, value := range mine {
			if rapid.Bool().Draw(t, "told "+key) {
				told[key] = value
			}
		}
		if !h.Has(NodeAffinity([]*csi.Topology{{Segments: told}})) {
			t.Fatalf("a volume at %v is not that of the node at %v", told, mine)
		}
		other := rapid.MapOfN(label, label, 1, 3).Draw(t, "other")
		usable := true
		for key, value := range other {
			usable = usable && mine[key] == value
		}
		if got := h.Has(NodeAffinity([]*csi.Topology{{Segments: other}})); got != usable {
			t.Fatalf("Has() = %v for a volume at %v and the node at %v", got, other, mine)
		}
	})
}
