package provision

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/capacity"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// nodeValues make the chart a DaemonSet, which tells the scheduler of room.
var nodeValues = []string{
	"provisioner.nodeDeployment.enabled=true", "provisioner.nodeDeployment.baseDelay=2s", "provisioner.nodeDeployment.maxDelay=5s",
	"provisioner.capacity=true",
}

// clusterValues make a second release run the rest, once for the cluster.
var clusterValues = []string{"sidecar.controllers={*,-provisioner}"}

// perNode is a scene in a world with a provisioner on each of three nodes, whose
// drivers have storage of their own.
type perNode struct{ *scene }

func newPerNode(t *testing.T, volumesEach int) perNode {
	t.Helper()
	w := ownWorld(t, rig.Config{
		Nodes: len(zones), Topology: zones, Values: nodeValues, Beside: clusterValues,
		NodeDriverArgs: []string{"--controller", fmt.Sprintf("--capacity=%d", volumesEach<<30)},
	})
	s := perNode{newScene(t, w)}
	for _, n := range w.Nodes {
		s.start(n)
	}
	return s
}

func (s perNode) start(n *rig.Node) *rig.Sidecar {
	s.t.Helper()
	sidecar, err := s.StartSidecarOn(s.ctx, n)
	s.must(err)
	return sidecar
}

// callsOn are those to the driver of a node about the volume of a claim.
func (s perNode) callsOn(n *rig.Node, method string, claim *v1.PersistentVolumeClaim) (calls []simctl.Call) {
	s.t.Helper()
	all, err := n.Driver.Calls(s.ctx, method)
	s.must(err)
	for _, c := range all {
		if c.Name == pvName(claim) || c.Volume == volumeID(claim) {
			calls = append(calls, c)
		}
	}
	return calls
}

// answered are the nodes whose drivers have answered so, once for each call.
func (s perNode) answered(method, code string, claim *v1.PersistentVolumeClaim) (nodes []string) {
	s.t.Helper()
	for _, n := range s.Nodes {
		for _, c := range s.callsOn(n, method, claim) {
			if c.Code == code {
				nodes = append(nodes, n.Name)
			}
		}
	}
	return nodes
}

// TestEachNodeProvisionsItsOwn: of claims that wait for no pod each is taken by one
// node, all of which fill up and no more; each volume is made once, is where it was
// made, and is deleted there.
func TestEachNodeProvisionsItsOwn(t *testing.T) {
	const each, claims = 10, 30
	s := newPerNode(t, each)
	s.class()
	var all []*v1.PersistentVolumeClaim
	for i := range claims {
		all = append(all, s.claim(fmt.Sprintf("-%d", i)))
	}
	made := map[string]int{}
	where := map[*v1.PersistentVolumeClaim]string{}
	for _, claim := range all {
		pv := s.bound(claim)
		nodes := s.answered("CreateVolume", "OK", claim)
		if len(nodes) != 1 {
			t.Fatalf("the volume of claim %s was made on %v", claim.Name, nodes)
		}
		node := nodes[0]
		made[node]++
		where[claim] = node
		for other, labels := range zones {
			if topology.Matches(pv.Spec.NodeAffinity, labels) != (other == node) {
				t.Errorf("the volume of claim %s was made on %s, and its affinity is %v", claim.Name, node, pv.Spec.NodeAffinity)
			}
		}
		if owner := s.Claim(claim.Namespace, claim.Name).Annotations[provisioner.AnnotationSelectedNode]; owner != node {
			t.Errorf("claim %s names node %s, and was provisioned on %s", claim.Name, owner, node)
		}
	}
	for _, n := range s.Nodes {
		if made[n.Name] != each {
			t.Errorf("%v volumes were made, want each node full", made)
		}
	}
	for _, claim := range all {
		s.deleteClaim(claim)
	}
	for _, claim := range all {
		s.gone(claim)
		if nodes := s.answered("DeleteVolume", "OK", claim); !slices.Equal(nodes, []string{where[claim]}) {
			t.Errorf("the volume of claim %s was made on %s and deleted on %v", claim.Name, where[claim], nodes)
		}
	}
}

// on makes a claim one that the scheduler has chosen the node for.
func on(n *rig.Node) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, provisioner.AnnotationSelectedNode, n.Name)
	}
}

// room is what the scheduler is told of a node, in volumes, or -1.
func (s perNode) room(n *rig.Node) int64 {
	s.t.Helper()
	list, err := s.Client.StorageV1().CSIStorageCapacities(rig.SidecarNamespace).List(s.ctx, metav1.ListOptions{
		LabelSelector: capacity.LabelManagedBy + "=" + capacity.ManagedBy(n.Name),
	})
	s.must(err)
	if len(list.Items) != 1 {
		return -1
	}
	told := &list.Items[0]
	if told.StorageClassName != s.name || told.NodeTopology.MatchLabels["example.com/zone"] != zones[n.Name]["example.com/zone"] {
		s.t.Errorf("of %s is told: %+v", n.Name, told)
	}
	return told.Capacity.Value() >> 30
}

func (s perNode) awaitRoom(n *rig.Node, volumes int64) {
	s.t.Helper()
	s.await(fmt.Sprintf("%s has room for %d volumes", n.Name, volumes), func() bool { return s.room(n) == volumes })
}

// TestAPodsVolumeIsMadeOnItsNode: the scheduler chooses a node with room for the
// volume of a pod, by what the provisioner of each node tells it, and not one that
// is full. The provisioner there makes the volume and deletes it; a second release
// of the chart, for the cluster, attaches it. What is told of a node goes with it.
func TestAPodsVolumeIsMadeOnItsNode(t *testing.T) {
	s := newPerNode(t, 2)
	s.class(later)
	attacher, err := s.StartBeside(s.ctx)
	s.must(err)
	for _, n := range s.Nodes {
		s.awaitRoom(n, 2)
	}
	full := s.Nodes[0]
	filling := s.claim("-filling", on(full), asking("2Gi"))
	s.bound(filling)
	s.awaitRoom(full, 0)

	claim := s.claim("")
	pod := s.podWith(claim, func(spec *v1.PodSpec) { spec.Affinity = rig.Prefer(full.Name) })
	running, err := s.AwaitRunning(s.ctx, pod.Name, "")
	s.must(err)
	node := s.node(running.Spec.NodeName)
	if node == full {
		t.Fatalf("the pod is on %s, which is full", node.Name)
	}
	if made := s.answered("CreateVolume", "OK", claim); !slices.Equal(made, []string{node.Name}) {
		t.Errorf("the volume was made on %v, and its pod is on %s", made, node.Name)
	}
	s.awaitRoom(node, 1)

	s.deletePod(pod)
	for _, c := range []*v1.PersistentVolumeClaim{claim, filling} {
		s.deleteClaim(c)
		s.gone(c)
	}
	if deleted := s.answered("DeleteVolume", "OK", claim); !slices.Equal(deleted, []string{node.Name}) {
		t.Errorf("the volume was made on %s and deleted on %v", node.Name, deleted)
	}
	s.awaitRoom(node, 2)
	s.awaitRoom(full, 2)
	s.must(attacher.Stop())

	s.must(s.Sidecars[0].Stop())
	s.must(s.Client.CoreV1().Pods(rig.SidecarNamespace).Delete(s.ctx, s.NodePod(full), metav1.DeleteOptions{}))
	s.awaitRoom(full, -1)
	if room := s.room(node); room != 2 {
		t.Errorf("of %s is told %d, since another node is gone", node.Name, room)
	}
}

// node is the one of that name.
func (s perNode) node(name string) *rig.Node {
	s.t.Helper()
	at := slices.IndexFunc(s.Nodes, func(n *rig.Node) bool { return n.Name == name })
	if at < 0 {
		s.t.Fatalf("there is no node %q", name)
	}
	return s.Nodes[at]
}

// TestWhatANodeBeganIsItsOwn: a provisioner is killed while a volume may exist, and
// its claim is deleted. Nobody else takes that up, not after a restart either; the
// next one on the node does, and deletes the volume.
func TestWhatANodeBeganIsItsOwn(t *testing.T) {
	s := newPerNode(t, 10)
	s.class(later)
	first, second := s.Nodes[0], s.Nodes[1]
	fault, err := first.Driver.Inject(s.ctx, simctl.Fault{Method: "CreateVolume", Hang: true, Effect: true, Detach: true})
	s.must(err)
	claim := s.claim("-begun", on(first))
	s.await("the call is under way", func() bool { return len(s.callsOn(first, "CreateVolume", claim)) == 1 })
	s.Sidecars[0].Kill()
	s.must(first.Driver.Clear(s.ctx, fault)) // it lands now
	s.await("the volume is there", func() bool { return s.exists(claim) })
	s.deleteClaim(claim)

	s.must(s.Sidecars[1].Stop())
	s.start(second)
	// That it provisions shows that it has read its journal.
	other := s.claim("-other", on(second))
	if pv := s.bound(other); !topology.Matches(pv.Spec.NodeAffinity, zones[second.Name]) {
		t.Errorf("the volume that the scheduler chose %s for has affinity %v", second.Name, pv.Spec.NodeAffinity)
	}
	for _, n := range s.Nodes[1:] {
		if calls := append(s.callsOn(n, "CreateVolume", claim), s.callsOn(n, "DeleteVolume", claim)...); len(calls) > 0 {
			t.Errorf("%s took up what %s began: %v", n.Name, first.Name, calls)
		}
	}
	if !s.exists(claim) {
		t.Error("the volume is gone, though nobody could know of it")
	}
	s.start(first)
	s.gone(claim)
	if nodes := s.answered("DeleteVolume", "OK", claim); !slices.Contains(nodes, first.Name) {
		t.Errorf("the volume was deleted on %v", nodes)
	}
	pages, err := s.Client.CoreV1().ConfigMaps(rig.SidecarNamespace).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	var journals []string
	for i := range pages.Items {
		if strings.HasPrefix(pages.Items[i].Name, "ha-sidecar-journal-") {
			journals = append(journals, pages.Items[i].Name)
		}
	}
	want := []string{}
	for _, n := range s.Nodes {
		want = append(want, "ha-sidecar-journal-sim-csi-ha-sidecar-io."+n.Name+"-0")
	}
	if !slices.Equal(journals, want) {
		t.Errorf("the journals are %v, want %v", journals, want)
	}
	s.deleteClaim(other)
	s.gone(other)
}
