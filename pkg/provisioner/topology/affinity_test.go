package topology

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func reply(segments ...string) []*csi.Topology {
	var out []*csi.Topology
	for _, s := range segments {
		out = append(out, &csi.Topology{Segments: pairs(s)})
	}
	return out
}

func affinity(terms ...string) *v1.VolumeNodeAffinity {
	required := &v1.NodeSelector{}
	for _, s := range terms {
		var term v1.NodeSelectorTerm
		for p := range strings.SplitSeq(s, ",") {
			k, v, _ := strings.Cut(p, "=")
			term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{Key: k, Operator: v1.NodeSelectorOpIn, Values: []string{v}})
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	return &v1.VolumeNodeAffinity{Required: required}
}

func TestNodeAffinity(t *testing.T) {
	for name, test := range map[string]struct {
		reply []*csi.Topology
		want  *v1.VolumeNodeAffinity
	}{
		"no topologies":                 {nil, nil},
		"one":                           {reply("zone=a"), affinity("zone=a")},
		"keys are sorted":               {reply("zone=a,rack=1"), affinity("rack=1,zone=a")},
		"terms are sorted":              {reply("zone=b", "zone=a"), affinity("zone=a", "zone=b")},
		"terms are distinct":            {reply("zone=a,rack=1", "zone=b", "rack=1,zone=a"), affinity("rack=1,zone=a", "zone=b")},
		"T13: only empty segments":      {reply("-", "-"), nil},
		"empty segments among others":   {reply("-", "zone=a"), affinity("zone=a")},
		"a topology that is not there":  {[]*csi.Topology{nil}, nil},
		"an empty value":                {reply("zone="), affinity("zone=")},
		"a value with separators in it": {[]*csi.Topology{{Segments: map[string]string{"zone": "a,rack=1%2C"}}}, &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"a,rack=1%2C"}}}}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, NodeAffinity(test.reply)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAReplyThatNoNodeCanHaveIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		reply []*csi.Topology
		says  string
	}{
		"nothing":     {nil, ""},
		"good":        {reply("topology.example.com/zone=a_1.x", "zone="), ""},
		"no segments": {reply("-"), ""},
		"bad key":     {reply("a/b/c=d"), `"a/b/c" is no label key`},
		"empty key":   {reply("=d"), `"" is no label key`},
		"bad value":   {reply("zone=a", "zone=a b"), `"a b" of the topology key "zone"`},
		"long value":  {reply("zone=" + strings.Repeat("x", 64)), "no label value"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(test.reply)
			if (err == nil) != (test.says == "") {
				t.Fatal(err)
			}
			if err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v does not say %s", err, test.says)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	for name, test := range map[string]struct {
		affinity *v1.VolumeNodeAffinity
		labels   string
		want     bool
	}{
		"no affinity":         {nil, "zone=a", true},
		"nothing is required": {&v1.VolumeNodeAffinity{}, "-", true},
		"no terms":            {&v1.VolumeNodeAffinity{Required: &v1.NodeSelector{}}, "zone=a", false},
		"the same":            {affinity("zone=a"), "zone=a", true},
		"another value":       {affinity("zone=a"), "zone=b", false},
		"more labels":         {affinity("zone=a"), "zone=a,rack=1", true},
		"fewer labels":        {affinity("rack=1,zone=a"), "zone=a", false},
		"one of the terms":    {affinity("zone=a", "zone=b"), "zone=b", true},
		"cannot be parsed":    {affinity("a/b/c=x"), "a/b/c=x", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Matches(test.affinity, pairs(test.labels)); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
