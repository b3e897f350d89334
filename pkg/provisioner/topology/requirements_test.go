package topology

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
)

type wanted struct {
	name    string
	cluster *cluster
	strict  bool
	// lazy is --immediate-topology=false.
	lazy    bool
	claim   string
	allowed string
	node    string
	// want is requisite, preferred what comes first in it; "" is no requirement.
	want, preferred string
	err             string
}

func (w wanted) run(t *testing.T) {
	t.Helper()
	got, err := w.cluster.builder(t, w.strict, !w.lazy).Requirements(w.claim, allowed(w.allowed), w.node)
	if w.err != "" {
		if err == nil || !strings.Contains(err.Error(), w.err) {
			t.Fatalf("got error %v, want one that says %q", err, w.err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if w.want == "" {
		if got != nil {
			t.Fatalf("got %v, want nothing to say", got)
		}
		return
	}
	if is := said(got.GetRequisite()); is != w.want {
		t.Errorf("requisite is\n%s, want\n%s", is, w.want)
	}
	if is := said(got.GetPreferred()); w.preferred != "" && is != w.preferred {
		t.Errorf("preferred is\n%s, want\n%s", is, w.preferred)
	}
}

func table(t *testing.T, tests []wanted) {
	t.Helper()
	for _, w := range tests {
		t.Run(w.name, w.run)
	}
}

func zones() *cluster {
	return of("n1 zone=a,rack=1 zone,rack", "n2 zone=a,rack=2 zone,rack", "n3 zone=b,rack=1 zone,rack")
}

const all = "rack=1,zone=a; rack=1,zone=b; rack=2,zone=a"

func TestAllowedTopologies(t *testing.T) {
	c := zones()
	table(t, []wanted{
		{name: "one expression", cluster: c, allowed: "zone=b|a", want: "zone=a; zone=b"},
		{name: "one expression, one value", cluster: c, allowed: "zone=b", want: "zone=b"},
		{name: "AND of ORs", cluster: c, allowed: "zone=a|b,rack=1|2", want: "rack=1,zone=a; rack=1,zone=b; rack=2,zone=a; rack=2,zone=b"},
		{name: "OR of terms", cluster: c, allowed: "zone=b;rack=2", want: "rack=2; zone=b"},
		{name: "overlapping terms", cluster: c, allowed: "zone=a|b;zone=b|c", want: "zone=a; zone=b; zone=c"},
		{name: "a term within another", cluster: c, allowed: "zone=a;zone=a,rack=1", want: "rack=1,zone=a; zone=a"},
		{name: "the same twice, in another order", cluster: c, allowed: "zone=a,rack=1;rack=1,zone=a", want: "rack=1,zone=a"},
		{name: "only empty terms", cluster: c, allowed: "-;-", want: ""},
		{name: "an empty term among others", cluster: c, allowed: "-;zone=a", want: "zone=a"},
		{name: "a key twice in a term", cluster: c, allowed: "zone=a|b,zone=b|c", want: "zone=b"},
		{name: "a contradiction", cluster: c, allowed: "zone=a,zone=b", err: "admit no node at all"},
		{name: "a key without values", cluster: c, allowed: "zone=", err: "admit no node at all"},
		{name: "without nodes", cluster: newCluster(), allowed: "zone=a", want: "zone=a"},
		{name: "--immediate-topology=false", cluster: c, lazy: true, allowed: "zone=a", want: "zone=a"},
		{name: "strict without a node", cluster: c, strict: true, allowed: "zone=a|b", want: "zone=a; zone=b"},
		{name: "of a product that fills memory", cluster: c, allowed: tooMany(), err: "more than 10000 segments"},
		{name: "many terms", cluster: c, allowed: strings.Repeat("zone="+strings.Repeat("a|", 4000)+"b;", 3) + "zone=a", err: "more than 10000 segments"},
	})
}

// tooMany stands for 100^6 segments.
func tooMany() string {
	var values, term []string
	for i := range 100 {
		values = append(values, fmt.Sprint(i))
	}
	for i := range 6 {
		term = append(term, fmt.Sprintf("k%d=%s", i, strings.Join(values, "|")))
	}
	return strings.Join(term, ",")
}

func TestTopologyAggregation(t *testing.T) {
	same := of("n1 zone=a zone", "n2 zone=a zone", "n3 zone=a zone")
	mixed := of("n1 zone=a zone", "n2 zone=a,rack=1 zone,rack", "n3 zone=b,rack=1 rack,zone", "n4 zone=c zone,rack")
	none := of("n1 zone=a -", "n2 zone=b !")
	bare := of("n1 - zone", "n2 - zone")
	table(t, []wanted{
		{name: "immediate: same values", cluster: same, want: "zone=a", preferred: "zone=a"},
		{name: "immediate: distinct values", cluster: zones(), want: all},
		{name: "immediate: the keys that most nodes have in full", cluster: mixed, want: "rack=1,zone=a; rack=1,zone=b"},
		{name: "immediate: the first keys of equally many", cluster: of("n1 zone=a zone", "n2 rack=1 rack"), want: "rack=1"},
		{name: "immediate: keys that no node has do not count", cluster: of("n1 - rack", "n2 - rack", "n3 ! rack", "n4 zone=a zone"), want: "zone=a"},
		{name: "immediate: nodes without the driver count", cluster: of("n1 zone=a zone", "n2 zone=b -", "n3 zone=c !"), want: "zone=a; zone=b; zone=c"},
		{name: "immediate: no keys", cluster: none, want: ""},
		{name: "immediate: no nodes", cluster: newCluster(), want: ""},
		{name: "immediate: no labels", cluster: bare, err: "no node of the driver has labels for all of them"},
		{name: "immediate: off", cluster: zones(), lazy: true, want: ""},
		{name: "immediate: an empty label value", cluster: of("n1 zone= zone"), want: "zone="},

		{name: "delayed: same values", cluster: same, node: "n1", want: "zone=a", preferred: "zone=a"},
		{name: "delayed: distinct values", cluster: zones(), node: "n3", want: all, preferred: "rack=1,zone=b; rack=2,zone=a; rack=1,zone=a"},
		{name: "delayed: the keys of the selected node", cluster: mixed, node: "n1", want: "zone=a; zone=b; zone=c", preferred: "zone=a; zone=b; zone=c"},
		{name: "delayed: nodes without one of its keys do not count", cluster: mixed, node: "n2", want: "rack=1,zone=a; rack=1,zone=b"},
		{name: "delayed: whatever --immediate-topology says", cluster: same, lazy: true, node: "n1", want: "zone=a"},
		{name: "delayed: no keys", cluster: none, node: "n1", err: `CSINode "n1" has no topologyKeys for driver "sim.example.com"`},
		{name: "delayed: no label", cluster: bare, node: "n1", err: `node "n1" lacks the labels ["zone"]`},
		{name: "delayed: one label of two", cluster: of("n1 zone=a zone,rack"), node: "n1", err: `lacks the labels ["rack"]`},
		{name: "delayed: a key that is none", cluster: of("n1 zone=a zone,-x/y/z"), node: "n1", err: `the topology key "-x/y/z", which is no label key`},

		{name: "strict: same values", cluster: same, strict: true, node: "n1", want: "zone=a", preferred: "zone=a"},
		{name: "strict: distinct values", cluster: zones(), strict: true, node: "n3", want: "rack=1,zone=b", preferred: "rack=1,zone=b"},
		{name: "strict: the keys of the selected node", cluster: mixed, strict: true, node: "n2", want: "rack=1,zone=a"},
		{name: "strict: no keys", cluster: none, strict: true, node: "n1", err: "has no topologyKeys"},
		{name: "strict: no label", cluster: bare, strict: true, node: "n1", err: "lacks the labels"},
		{name: "strict: without a node", cluster: zones(), strict: true, want: all},
	})
}

func TestPreferredTopologies(t *testing.T) {
	c := zones()
	table(t, []wanted{
		{name: "allowed, rotated to the selected node", cluster: c, node: "n3", allowed: "zone=a|b|c", want: "zone=a; zone=b; zone=c", preferred: "zone=b; zone=c; zone=a"},
		{name: "allowed in full, rotated", cluster: c, node: "n2", allowed: "zone=a|b,rack=1|2", want: "rack=1,zone=a; rack=1,zone=b; rack=2,zone=a; rack=2,zone=b", preferred: "rack=2,zone=a; rack=2,zone=b; rack=1,zone=a; rack=1,zone=b"},
		{name: "allowed, and the node is outside", cluster: c, node: "n3", allowed: "zone=a", err: `"n3" is at rack=1,zone=b, which none of the allowedTopologies of the class admits (zone=a)`},
		{name: "allowed by a key that is not of the driver", cluster: of("n1 zone=a,disk=ssd zone"), node: "n1", allowed: "disk=ssd", err: `keys of CSINode "n1" (zone)`},
		{name: "allowed terms are all empty", cluster: c, node: "n1", allowed: "-", want: ""},
		{name: "a class that admits nothing", cluster: c, node: "n1", allowed: "zone=", err: "admit no node at all"},
		{name: "strict: allowed", cluster: c, strict: true, node: "n3", allowed: "zone=a|b", want: "rack=1,zone=b", preferred: "rack=1,zone=b"},
		{name: "strict: the node is outside", cluster: c, strict: true, node: "n3", allowed: "zone=a", err: "none of the allowedTopologies"},
		{name: "strict: partly outside", cluster: c, strict: true, node: "n3", allowed: "zone=b,rack=2", err: "none of the allowedTopologies"},
		{name: "strict: allowed terms are all empty", cluster: c, strict: true, node: "n3", allowed: "-", want: "rack=1,zone=b"},
	})
}

// base1437, lib/issues/121: a claim whose node is gone is scheduled again, and
// only such a claim.
func TestDeletedNodeFromCache(t *testing.T) {
	tests := map[string]struct {
		cluster *cluster
		gone    bool
	}{
		"neither Node nor CSINode": {newCluster(), true},
		"no Node":                  {of("n1 ! zone"), true},
		"no CSINode":               {of("n1 zone=a !"), true},
		"no driver":                {of("n1 zone=a -"), false},
		"no label":                 {of("n1 - zone"), false},
	}
	for name, test := range tests {
		for _, strict := range []bool{true, false} {
			for _, terms := range []string{"", "zone=a"} {
				t.Run(fmt.Sprint(name, ", strict ", strict, ", allowed ", terms), func(t *testing.T) {
					_, err := test.cluster.builder(t, strict, true).Requirements("c", allowed(terms), "n1")
					if err == nil || errors.Is(err, ErrNodeGone) != test.gone {
						t.Errorf("got %v, want ErrNodeGone %v", err, test.gone)
					}
					if !strings.Contains(err.Error(), "n1") {
						t.Errorf("%v does not name the node", err)
					}
				})
			}
		}
	}
}

// base1478: what comes late counts at the next call, and what goes too.
func TestNodeTopologyLabelFallback(t *testing.T) {
	c := of("n1 - zone", "n2 zone=b zone")
	b := c.builder(t, true, true)
	try := func(want, fails string) {
		t.Helper()
		got, err := b.Requirements("c", nil, "n1")
		if fails != "" {
			if err == nil || !strings.Contains(err.Error(), fails) {
				t.Fatalf("got %v, want an error that says %q", err, fails)
			}
			return
		}
		if err != nil || said(got.GetRequisite()) != want {
			t.Fatalf("got %v, %v, want %s", got, err, want)
		}
	}
	try("", "lacks the labels")
	c.node("n1", "zone=a")
	try("zone=a", "")
	c.csiNode("n1", "zone,rack")
	try("", `lacks the labels ["rack"]`)
	c.node("n1", "zone=a,rack=7")
	try("rack=7,zone=a", "")
	c.csiNode("n1", "-")
	try("", "has no topologyKeys")
	c.csiNode("n1", "rack")
	try("rack=7", "")
	if err := c.nodes.Delete(mustGet(t, c, "n1")); err != nil {
		t.Fatal(err)
	}
	try("", "gone")
}

func mustGet(t *testing.T, c *cluster, name string) any {
	t.Helper()
	obj, ok, err := c.nodes.GetByKey(name)
	if !ok || err != nil {
		t.Fatal("no node ", name)
	}
	return obj
}

func TestAConfigIsChecked(t *testing.T) {
	c := newCluster()
	nodes, csiNodes := corelisters.NewNodeLister(c.nodes), storagelisters.NewCSINodeLister(c.csiNodes)
	for name, cfg := range map[string]Config{
		"DriverName": {Nodes: nodes, CSINodes: csiNodes},
		"Nodes":      {DriverName: driver, CSINodes: csiNodes},
		"CSINodes":   {DriverName: driver, Nodes: nodes},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
