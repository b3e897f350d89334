package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"
)

var (
	genKey   = rapid.SampledFrom([]string{"zone", "rack", "region"})
	genValue = rapid.SampledFrom([]string{"a", "b", "c"})
)

func drawCluster(t *rapid.T) *cluster {
	c := newCluster()
	for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
		name := fmt.Sprintf("n%d", i)
		if rapid.IntRange(0, 9).Draw(t, "node") > 0 {
			var labels []string
			for _, k := range []string{"zone", "rack", "region"} {
				if rapid.IntRange(0, 3).Draw(t, "label") > 0 {
					labels = append(labels, k+"="+genValue.Draw(t, "value"))
				}
			}
			c.node(name, cmpOr(strings.Join(labels, ","), "-"))
		}
		if rapid.IntRange(0, 9).Draw(t, "csinode") > 0 {
			keys := rapid.SliceOfN(genKey, 0, 3).Draw(t, "keys")
			c.csiNode(name, cmpOr(strings.Join(keys, ","), "-"))
		}
	}
	return c
}

func cmpOr(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

func drawAllowed(t *rapid.T) []v1.TopologySelectorTerm {
	var terms []v1.TopologySelectorTerm
	for range rapid.IntRange(0, 3).Draw(t, "terms") {
		var term v1.TopologySelectorTerm
		for range rapid.IntRange(0, 3).Draw(t, "expressions") {
			term.MatchLabelExpressions = append(term.MatchLabelExpressions, v1.TopologySelectorLabelRequirement{
				Key: genKey.Draw(t, "key"), Values: rapid.SliceOfN(genValue, 0, 3).Draw(t, "values"),
			})
		}
		terms = append(terms, term)
	}
	return terms
}

func frozen(indexers ...cache.Indexer) map[string]runtime.Object {
	out := map[string]runtime.Object{}
	for i, indexer := range indexers {
		for _, key := range indexer.ListKeys() {
			obj, _, _ := indexer.GetByKey(key)
			out[fmt.Sprint(i, key)] = obj.(runtime.Object).DeepCopyObject()
		}
	}
	return out
}

// scribble writes into all that a requirement holds.
func scribble(r *csi.TopologyRequirement) {
	for _, list := range [][]*csi.Topology{r.GetRequisite(), r.GetPreferred()} {
		for i, topology := range list {
			topology.Segments["scribbled"] = "over"
			list[i] = nil
		}
	}
}

// base1465: a retry asks for the same as the first call did, whatever became of
// the first request; nothing that was passed in or is cached changes.
func TestARepeatedRequirementIsTheSameAndTouchesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, terms := drawCluster(t), drawAllowed(t)
		node := rapid.SampledFrom([]string{"", "", "n0", "n1"}).Draw(t, "node")
		claim := rapid.SampledFrom([]string{"data-web-0", "data-web-1", "data-web-2", "x"}).Draw(t, "claim")
		b := c.builder(t, rapid.Bool().Draw(t, "strict"), rapid.Bool().Draw(t, "immediate"))
		before := frozen(c.nodes, c.csiNodes)
		copied := make([]v1.TopologySelectorTerm, len(terms))
		for i := range terms {
			terms[i].DeepCopyInto(&copied[i])
		}
		first, err := b.Requirements(claim, terms, node)
		kept := proto.Clone(first).(*csi.TopologyRequirement)
		for range 4 {
			scribble(first)
			again, err2 := b.Requirements(claim, terms, node)
			if fmt.Sprint(err) != fmt.Sprint(err2) {
				t.Fatalf("first %v, then %v", err, err2)
			}
			if !proto.Equal(kept, again) {
				t.Fatalf("first %v, then %v", kept, again)
			}
			first = again
		}
		if diff := cmp.Diff(before, frozen(c.nodes, c.csiNodes)); diff != "" {
			t.Fatalf("the cache has changed: %s", diff)
		}
		if diff := cmp.Diff(copied, append([]v1.TopologySelectorTerm{}, terms...)); diff != "" {
			t.Fatalf("the class has changed: %s", diff)
		}
	})
}

// What CSI and the class demand of every requirement.
func TestARequirementKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, terms := drawCluster(t), drawAllowed(t)
		node := rapid.SampledFrom([]string{"", "n0", "n1", "n2"}).Draw(t, "node")
		strict := rapid.Bool().Draw(t, "strict")
		got, err := c.builder(t, strict, true).Requirements("data-web-1", terms, node)
		if err != nil || got == nil {
			if got != nil {
				t.Fatalf("both %v and %v", got, err)
			}
			return
		}
		requisite, preferred := segments(got.GetRequisite()), segments(got.GetPreferred())
		if len(requisite) == 0 || !slices.IsSorted(requisite) || len(slices.Compact(slices.Clone(requisite))) != len(requisite) {
			t.Fatalf("requisite is empty, unsorted or has duplicates: %q", requisite)
		}
		if sorted := slices.Sorted(slices.Values(preferred)); !slices.Equal(sorted, requisite) {
			t.Fatalf("preferred %q is not requisite %q", preferred, requisite)
		}
		if at := slices.Index(requisite, preferred[0]); !slices.Equal(preferred, append(slices.Clone(requisite[at:]), requisite[:at]...)) {
			t.Fatalf("preferred %q is no rotation of %q", preferred, requisite)
		}
		if node == "" {
			return
		}
		labels := mustNode(t, c, node).Labels
		if !within(labels, SegmentOf(got.GetPreferred()[0].GetSegments())) {
			t.Fatalf("node %v is not where %q is", labels, preferred[0])
		}
		if strict && len(requisite) != 1 {
			t.Fatalf("strict, and yet %q", requisite)
		}
		if len(terms) > 0 && !admits(terms, labels) {
			for _, term := range terms {
				if len(term.MatchLabelExpressions) > 0 {
					t.Fatalf("the class %v does not admit %v, and yet %v", terms, labels, got)
				}
			}
		}
	})
}

func segments(topologies []*csi.Topology) []string {
	var out []string
	for _, t := range topologies {
		out = append(out, SegmentOf(t.GetSegments()).String())
	}
	return out
}

func mustNode(t *rapid.T, c *cluster, name string) *v1.Node {
	obj, ok, _ := c.nodes.GetByKey(name)
	if !ok {
		t.Fatal("a requirement for a node that is not there")
	}
	return obj.(*v1.Node)
}

// admits is what allowedTopologies mean to the scheduler.
func admits(terms []v1.TopologySelectorTerm, labels map[string]string) bool {
	return slices.ContainsFunc(terms, func(term v1.TopologySelectorTerm) bool {
		for _, e := range term.MatchLabelExpressions {
			if value, ok := labels[e.Key]; !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return len(term.MatchLabelExpressions) > 0
	})
}

// flatten means what the scheduler means.
func TestFlattenedTermsAdmitTheSameNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		terms := drawAllowed(t)
		flat, err := flatten(terms)
		labels := rapid.MapOf(genKey, genValue).Draw(t, "labels")
		got := slices.ContainsFunc(flat, func(s Segment) bool { return within(labels, s) })
		if want := admits(terms, labels); got != want {
			t.Fatalf("%v and %v: flattened %v says %v, not %v (%v)", terms, labels, flat, got, want, err)
		}
	})
}

// A segment is its labels, whatever they are, and nothing else.
func TestASegmentIsItsLabels(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune("a%2C3D5=,")), 0, 8, -1))
	labels := rapid.MapOf(text.Filter(func(s string) bool { return s != "" }), text)
	rapid.Check(t, func(t *rapid.T) {
		a, b := labels.Draw(t, "a"), labels.Draw(t, "b")
		if got := SegmentOf(a).Labels(); !maps.Equal(got, a) {
			t.Fatalf("%q became %q", a, got)
		}
		if (SegmentOf(a) == SegmentOf(b)) != maps.Equal(a, b) {
			t.Fatalf("%q and %q: %q and %q", a, b, SegmentOf(a), SegmentOf(b))
		}
		if len(a) == 0 {
			if SegmentOf(a) != (Segment{}) || SegmentOf(a).Topology() != nil || SegmentOf(a).NodeSelector() == nil {
				t.Fatal("nothing is not everywhere")
			}
			return
		}
		if !maps.Equal(SegmentOf(a).Topology().GetSegments(), a) || !maps.Equal(SegmentOf(a).NodeSelector().MatchLabels, a) {
			t.Fatalf("%q became %v and %v", a, SegmentOf(a).Topology(), SegmentOf(a).NodeSelector())
		}
	})
}

// An affinity of a reply admits a node exactly if one of its topologies does.
func TestAnAffinityAdmitsWhatTheReplySays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var reply []*csi.Topology
		says := false
		labels := rapid.MapOf(genKey, genValue).Draw(t, "labels")
		admitted := false
		for range rapid.IntRange(0, 4).Draw(t, "topologies") {
			s := rapid.MapOfN(genKey, genValue, 0, 2).Draw(t, "segments")
			reply = append(reply, &csi.Topology{Segments: s})
			if len(s) > 0 {
				says = true
				admitted = admitted || within(labels, SegmentOf(s))
			}
		}
		got := NodeAffinity(reply)
		if (got != nil) != says {
			t.Fatalf("%v became %v", reply, got)
		}
		if Matches(got, labels) != (admitted || !says) {
			t.Fatalf("%v and %v: %v", reply, labels, got)
		}
		shuffled := rapid.Permutation(reply).Draw(t, "shuffled")
		if diff := cmp.Diff(got, NodeAffinity(shuffled)); diff != "" {
			t.Fatalf("order matters: %s", diff)
		}
	})
}
