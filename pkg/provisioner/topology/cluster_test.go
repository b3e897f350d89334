package topology

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
)

const driver = "sim.example.com"

// cluster is nodes and CSINodes as informers would hold them.
type cluster struct{ nodes, csiNodes cache.Indexer }

func newCluster() *cluster {
	return &cluster{
		nodes:    cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}),
		csiNodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}),
	}
}

// of makes a cluster of lines "name labels keys", where labels are
// "key=value,..." and keys "key,...": "-" is none of them, and "!" no such object.
func of(lines ...string) *cluster {
	c := newCluster()
	for _, line := range lines {
		f := strings.Fields(line)
		if f[1] != "!" {
			c.node(f[0], f[1])
		}
		if f[2] != "!" {
			c.csiNode(f[0], f[2])
		}
	}
	return c
}

func (c *cluster) node(name, labels string) {
	if err := c.nodes.Update(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: pairs(labels)}}); err != nil {
		panic(err)
	}
}

func (c *cluster) csiNode(name, keys string) {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other.example.com", NodeID: name, TopologyKeys: []string{"other"}}}
	if keys != "-" {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: name, TopologyKeys: strings.Split(keys, ",")})
	}
	if err := c.csiNodes.Update(n); err != nil {
		panic(err)
	}
}

func (c *cluster) builder(t interface {
	Helper()
	Fatal(...any)
}, strict, immediate bool) *Builder {
	t.Helper()
	b, err := New(Config{
		DriverName: driver, Strict: strict, Immediate: immediate,
		Nodes: corelisters.NewNodeLister(c.nodes), CSINodes: storagelisters.NewCSINodeLister(c.csiNodes),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pairs reads "key=value,..."; "-" is none.
func pairs(s string) map[string]string {
	m := map[string]string{}
	if s == "-" || s == "" {
		return m
	}
	for p := range strings.SplitSeq(s, ",") {
		k, v, _ := strings.Cut(p, "=")
		m[k] = v
	}
	return m
}

// allowed reads terms "key=value|value,..." apart by ";"; "" is no term, and "-"
// one without expressions.
func allowed(s string) []v1.TopologySelectorTerm {
	if s == "" {
		return nil
	}
	var terms []v1.TopologySelectorTerm
	for t := range strings.SplitSeq(s, ";") {
		var term v1.TopologySelectorTerm
		if t != "-" {
			for e := range strings.SplitSeq(t, ",") {
				key, values, _ := strings.Cut(e, "=")
				requirement := v1.TopologySelectorLabelRequirement{Key: key}
				if values != "" {
					requirement.Values = strings.Split(values, "|")
				}
				term.MatchLabelExpressions = append(term.MatchLabelExpressions, requirement)
			}
		}
		terms = append(terms, term)
	}
	return terms
}

// said writes topologies as segments apart by "; ".
func said(topologies []*csi.Topology) string {
	var out []string
	for _, t := range topologies {
		out = append(out, SegmentOf(t.GetSegments()).String())
	}
	return strings.Join(out, "; ")
}
