package topology

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Segment is a place in the cluster: labels that a node there has. Two segments
// are equal exactly if their labels are, so that it can be a key. The zero
// Segment has no labels and means everywhere.
type Segment struct {
	// canonical is "key=value,key=value", sorted by key. Labels hold neither "="
	// nor ","; what else a driver may say is escaped.
	canonical string
}

var (
	escape   = strings.NewReplacer("%", "%25", "=", "%3D", ",", "%2C")
	unescape = strings.NewReplacer("%25", "%", "%3D", "=", "%2C", ",")
)

// SegmentOf returns the segment with these labels.
func SegmentOf(labels map[string]string) Segment {
	var s strings.Builder
	for i, key := range slices.Sorted(maps.Keys(labels)) {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(escape.Replace(key))
		s.WriteByte('=')
		s.WriteString(escape.Replace(labels[key]))
	}
	return Segment{canonical: s.String()}
}

// String is "key=value,key=value", sorted by key; empty for everywhere.
func (s Segment) String() string { return s.canonical }

// Labels returns the labels, in a map that is the caller's.
func (s Segment) Labels() map[string]string {
	labels := map[string]string{}
	if s.canonical == "" {
		return labels
	}
	for pair := range strings.SplitSeq(s.canonical, ",") {
		key, value, _ := strings.Cut(pair, "=")
		labels[unescape.Replace(key)] = unescape.Replace(value)
	}
	return labels
}

// Topology is the segment as CSI says it; nil for everywhere.
func (s Segment) Topology() *csi.Topology {
	if s.canonical == "" {
		return nil
	}
	return &csi.Topology{Segments: s.Labels()}
}

// NodeSelector selects the nodes in the segment; for everywhere it is empty and
// not nil, since an empty selector selects all and a nil one nothing.
func (s Segment) NodeSelector() *metav1.LabelSelector {
	if s.canonical == "" {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchLabels: s.Labels()}
}

// distinct sorts the segments and drops those that come twice, in place.
func distinct(segments []Segment) []Segment {
	slices.SortFunc(segments, func(a, b Segment) int { return cmp.Compare(a.canonical, b.canonical) })
	return slices.Compact(segments)
}

// topologies makes each segment a message of its own, beginning with the one at
// first and going round.
func topologies(segments []Segment, first int) []*csi.Topology {
	out := make([]*csi.Topology, 0, len(segments))
	for i := range segments {
		out = append(out, segments[(first+i)%len(segments)].Topology())
	}
	return out
}
