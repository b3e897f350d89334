package app

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
)

// TestControllersOfOneNode: the provisioner alone, and naming another is a mistake.
func TestControllersOfOneNode(t *testing.T) {
	for selection, fails := range map[string]string{
		"*":                    "",
		"provisioner":          "",
		"*,-attacher":          "",
		"*,-health":            "",
		"provisioner,*":        "",
		"attacher,-attacher,*": "",
		"attacher":             "run attacher once for the cluster",
		"*,health":             "run health once for the cluster",
		"provisioner,attacher": "run attacher once for the cluster",
		"*,-provisioner":       "runs nothing with --node-deployment",
		"nosuch":               "no controller",
	} {
		o := parse(t, "--node-deployment", "--controllers="+selection)
		got, err := o.enabled()
		if fails != "" {
			if err == nil || !strings.Contains(err.Error(), fails) || !strings.Contains(err.Error(), "--controllers") {
				t.Errorf("--controllers=%s: %v, %v; want an error with %q", selection, got, err, fails)
			}
			continue
		}
		if errs := o.Validate(); err != nil || len(errs) > 0 || len(got) != 1 || got[0] != controllerProvisioner {
			t.Errorf("--controllers=%s: %v, %v, %v", selection, got, err, errs)
		}
	}
}

// TestNothingIsElectedOnANode, whatever the flags of an election are.
func TestNothingIsElectedOnANode(t *testing.T) {
	for args, want := range map[string]bool{
		"": true, "--leader-election": true, "--leader-election=false": false,
		"--node-deployment": false, "--node-deployment --leader-election=false": false,
		"--node-deployment --leader-election-lease-duration=1s": false,
	} {
		o := parse(t, strings.Fields(args)...)
		if errs := o.Validate(); o.elects() != want || len(errs) > 0 {
			t.Errorf("%q: elects is %v, want %v; %v", args, o.elects(), want, errs)
		}
	}
}

// TestTheNodeHasToBeNamed, by the environment.
func TestTheNodeHasToBeNamed(t *testing.T) {
	for _, name := range []string{"", "Not A Node"} {
		t.Setenv(envNodeName, name)
		err := Run(t.Context(), parse(t, "--node-deployment"))
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), "NODE_NAME") || !strings.Contains(err.Error(), "spec.nodeName") {
			t.Errorf("NODE_NAME=%q: %v", name, err)
		}
	}
	t.Setenv(envNodeName, "node-1")
	for args, want := range map[string]string{"--node-deployment": "node-1", "": ""} {
		if got, err := parse(t, strings.Fields(args)...).ownNode(); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", args, got, err, want)
		}
	}
}

// TestJournalsOfNodes: no two pairs of driver and node share one, and each can be
// the name of a ConfigMap.
func TestJournalsOfNodes(t *testing.T) {
	long := strings.Repeat("n", 63) + "." + strings.Repeat("m", 63) + "." + strings.Repeat("o", 63) + "." + strings.Repeat("p", 61)
	seen := map[string]string{}
	for _, pair := range [][2]string{
		{"a.example.com", "n-1"}, {"a.example.com", "n.1"}, {"a", "b-c"}, {"a.b", "c"}, {"a", "b.c"}, {"a-b", "d"}, {"a", "0"},
		{"a", long}, {"a", "x" + long[1:]}, {strings.Repeat("D", 63), long},
	} {
		name := nodeJournalName(pair[0], pair[1])
		if other, twice := seen[name]; twice || len(name) > 247 || strings.ToLower(name) != name {
			t.Errorf("the journal of driver %s on node %s is %s, as that of %s", pair[0], pair[1], name, other)
		}
		seen[name] = pair[0] + " " + pair[1]
	}
	if got := nodeJournalName("ebs.csi.aws.com", "ip-10-0-0-1.ec2.internal"); got != "ha-sidecar-journal-ebs-csi-aws-com.ip-10-0-0-1.ec2.internal" {
		t.Error(got)
	}
}

// TestSourcesInTheJournalsOfOtherNodes are found, and those of our own and of other
// drivers are none of them.
func TestSourcesInTheJournalsOfOtherNodes(t *testing.T) {
	driver := csiclienttest.New(t)
	driver.Start()
	client, err := csiclient.New(csiclient.Config{Address: driver.Path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if err := client.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	ref := source.Ref{Kind: source.Claim, Namespace: "default", Name: "src", UID: "1"}
	for name, want := range map[string]bool{
		nodeJournalName(client.Name(), "node-1"): false, nodeJournalName(client.Name(), "node-2"): true,
		nodeJournalName(client.Name(), strings.Repeat("n.", 120)+"n"): true, journalName(client.Name()): true,
		nodeJournalName("other.example.com", "node-2"): false, nodeJournalName(client.Name()+"x", "node-2"): false, "unrelated": false,
	} {
		page := &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: name + "-0", Labels: map[string]string{journal.LabelJournal: "x"}},
			Data:       map[string]string{"uid": `{"source":{"kind":"PersistentVolumeClaim","namespace":"default","name":"src","uid":"1"}}`},
		}
		d := deps{
			opts: parse(t, "--node-deployment"), driver: client, namespace: "csi", node: &node{name: "node-1"},
			clients: &kube.Clients{Work: fake.NewClientset(page)},
		}
		where, err := otherJournals(d)(t.Context(), ref)
		if err != nil || (where != "") != want || want && where != "ConfigMap csi/"+page.Name {
			t.Errorf("%s: found %q, %v", page.Name, where, err)
		}
		ref := ref
		ref.Name = "another"
		if where, err := otherJournals(d)(t.Context(), ref); err != nil || where != "" {
			t.Errorf("%s, for another source: found %q, %v", page.Name, where, err)
		}
	}
}

// TestFindNode: what a driver says of its node, and what then cannot be.
func TestFindNode(t *testing.T) {
	reply := func(segments map[string]string, err error) csiclienttest.Handler {
		return func(context.Context, any) (any, error) {
			if err != nil {
				return nil, err
			}
			return &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csi.Topology{Segments: segments}}, nil
		}
	}
	busy := 2
	for name, c := range map[string]struct {
		flags    string
		services []csi.PluginCapability_Service_Type
		handler  csiclienttest.Handler
		want     string // the segment
		fails    string
	}{
		"a place": {handler: reply(map[string]string{"zone": "a"}, nil), want: "zone=a"},
		"not at once": {handler: func(ctx context.Context, req any) (any, error) {
			if busy--; busy >= 0 {
				return nil, status.Error(codes.Unavailable, "busy")
			}
			return reply(map[string]string{"zone": "b"}, nil)(ctx, req)
		}, want: "zone=b"},
		"no place":        {handler: reply(nil, nil), fails: "does not say where its node is"},
		"no label":        {handler: reply(map[string]string{"a b": "c"}, nil), fails: "no label key"},
		"no Node service": {fails: "its socket must have the Node service too"},
		"never":           {flags: "--csi-connect-timeout=300ms", handler: reply(nil, status.Error(codes.Unavailable, "busy")), fails: "busy"},
		"no topology":     {services: []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}, fails: "VOLUME_ACCESSIBILITY_CONSTRAINTS"},
		"topology is off": {flags: "--feature-gates=Topology=false", fails: "feature gate Topology"},
	} {
		t.Run(name, func(t *testing.T) {
			driver := csiclienttest.New(t)
			if c.services == nil {
				c.services = []csi.PluginCapability_Service_Type{
					csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
				}
			}
			driver.SetServices(c.services...)
			driver.Handle("NodeGetInfo", c.handler)
			driver.Start()
			client, err := csiclient.New(csiclient.Config{Address: driver.Path})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			if err := client.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			opts := parse(t, append(strings.Fields(c.flags), "--node-deployment", "--retry-interval-start=10ms")...)
			p := &process{opts: opts, driver: client, node: "node-1"}
			found, err := p.findNode(t.Context())
			switch {
			case c.fails != "":
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%v, want %q", err, c.fails)
				}
			case err != nil || found.name != "node-1" || found.here.Segment().String() != c.want:
				t.Errorf("%+v, %v; want %s", found, err, c.want)
			}
		})
	}
	if found, err := new(process).findNode(t.Context()); found != nil || err != nil {
		t.Errorf("for the whole cluster: %v, %v", found, err)
	}
}
