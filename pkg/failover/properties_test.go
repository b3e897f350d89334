package failover

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// drawWorld makes a random small cluster, broken in random places.
func drawWorld(t *rapid.T) *world {
	w := newWorld("namespace shy annotation=ha-sidecar.io/failover=disabled")
	pick := func(label string, options ...string) string { return rapid.SampledFrom(options).Draw(t, label) }
	w.add("policy fence=" + pick("fence", "none", "unpublish", "unpublish", "network") +
		" max-failing-nodes=" + pick("share", "20%", "50%", "100%", "2") +
		" moves-per-minute=" + pick("rate", "1", "3", "120"))
	nodes := rapid.IntRange(1, 7).Draw(t, "nodes")
	for i := range nodes {
		w.add(fmt.Sprintf("node n%d %s", i, pick("node", "", "", "", "", "", "not-ready", "cordoned", "held", "without-driver")))
	}
	node := func() string { return fmt.Sprintf("n%d", rapid.IntRange(0, nodes-1).Draw(t, "on")) }
	volumes := rapid.IntRange(1, 8).Draw(t, "volumes")
	for i := range volumes {
		w.add(fmt.Sprintf("volume v%d modes=%s %s", i, pick("modes", "RWO", "RWO", "RWX"),
			pick("volume", "", "", "", "", "", "", "driver=other.example.com", "unclaimed", "handle=h-v0")))
	}
	for i := range rapid.IntRange(0, 10).Draw(t, "pods") {
		on := node()
		uses := rapid.SliceOfNDistinct(rapid.IntRange(0, volumes-1), 1, min(3, volumes), rapid.ID[int]).Draw(t, "uses")
		names := make([]string, len(uses))
		for j, u := range uses {
			names[j] = fmt.Sprintf("v%d", u)
			if rapid.IntRange(0, 9).Draw(t, "attached") > 0 {
				w.add(fmt.Sprintf("attached v%d %s", u, on))
			}
		}
		w.add(fmt.Sprintf("pod p-%d on=%s uses=%s %s", i, on, strings.Join(names, ","), pick("pod",
			"", "", "", "", "", "", "owner=DaemonSet/d", "owner=none", "has=hostPath", "phase=Pending", "phase=Succeeded",
			"annotation=ha-sidecar.io/failover=disabled", "stop=10s", "has=emptyDir")))
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "verdicts") {
		on := node()
		if i > 3 {
			on = "everywhere"
		}
		w.add(fmt.Sprintf("verdict v%d %s %s", rapid.IntRange(0, volumes-1).Draw(t, "failing"), on,
			pick("verdict", "", "", "", "", "", "unconfirmed", "suspect=1m", "state=Degraded", "state=DataLoss", "state=Healthy")))
	}
	return w
}

// freeze copies a snapshot to the bottom.
func freeze(s Snapshot) Snapshot {
	c := s
	c.Verdicts = slices.Clone(s.Verdicts)
	if s.CSIDriver != nil {
		c.CSIDriver = s.CSIDriver.DeepCopy()
	}
	c.Nodes = copied(s.Nodes, (*v1.Node).DeepCopy)
	c.CSINodes = copied(s.CSINodes, (*storagev1.CSINode).DeepCopy)
	c.Namespaces = copied(s.Namespaces, (*v1.Namespace).DeepCopy)
	c.Volumes = copied(s.Volumes, (*v1.PersistentVolume).DeepCopy)
	c.Claims = copied(s.Claims, (*v1.PersistentVolumeClaim).DeepCopy)
	c.Pods = copied(s.Pods, func(pods []*v1.Pod) (out []*v1.Pod) {
		for _, pod := range pods {
			out = append(out, pod.DeepCopy())
		}
		return out
	})
	c.Attachments = copied(s.Attachments, func(vas []*storagev1.VolumeAttachment) (out []*storagev1.VolumeAttachment) {
		for _, va := range vas {
			out = append(out, va.DeepCopy())
		}
		return out
	})
	c.Memory = Memory{
		Breaker: s.Memory.Breaker, Spent: slices.Clone(s.Memory.Spent), Grants: maps.Clone(s.Memory.Grants),
		Workloads: maps.Clone(s.Memory.Workloads), Idle: maps.Clone(s.Memory.Idle),
	}
	return c
}

func copied[K comparable, V any](m map[K]V, deep func(V) V) map[K]V {
	out := map[K]V{}
	for k, v := range m {
		out[k] = deep(v)
	}
	return out
}

// TestDecideIsPure: the same snapshot, in whatever order, gives the same
// decision, and is left as it was.
func TestDecideIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.decide() // so that there is a memory to spoil
		w.now = w.now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "pause")) * time.Second)
		s := w.snapshot()
		before := freeze(s)
		one := Decide(s, w.now)
		if diff := cmp.Diff(before, s); diff != "" {
			t.Fatalf("the snapshot was changed:\n%s", diff)
		}
		rng := rand.New(rand.NewPCG(1, uint64(len(s.Verdicts))))
		rng.Shuffle(len(s.Verdicts), func(i, j int) { s.Verdicts[i], s.Verdicts[j] = s.Verdicts[j], s.Verdicts[i] })
		for _, pods := range s.Pods {
			rng.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		}
		for _, vas := range s.Attachments {
			rng.Shuffle(len(vas), func(i, j int) { vas[i], vas[j] = vas[j], vas[i] })
		}
		if diff := cmp.Diff(one, Decide(s, w.now)); diff != "" {
			t.Fatalf("another order, another decision:\n%s", diff)
		}
	})
}

// TestNeverMoreNodesThanMay: whatever happens, pods leave no more nodes than
// may fail, and none at all once more than that fail.
func TestNeverMoreNodesThanMay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range 4 {
			d := w.decide()
			from := map[string]bool{}
			for _, a := range d.Answers {
				if a.Action == ActionMove {
					from[a.Key.Node] = true
				}
			}
			if d.Brake.Limit >= 0 && (len(from) > d.Brake.Limit || len(from) > 0 && len(d.Brake.Failing) > d.Brake.Limit) {
				t.Fatalf("moves off %v, %v fail, %d may", slices.Sorted(maps.Keys(from)), d.Brake.Failing, d.Brake.Limit)
			}
			if d.Brake.Limit >= 0 && d.Brake.Carriers > 2 && 2*d.Brake.Limit >= d.Brake.Carriers {
				t.Fatalf("%d of %d nodes may fail", d.Brake.Limit, d.Brake.Carriers)
			}
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "pause")) * time.Second)
			w.add(fmt.Sprintf("verdict v0 n%d", rapid.IntRange(0, len(w.nodes)-1).Draw(t, "next")))
		}
	})
}

// TestRateIsNeverExceeded: in no minute are more pods granted than the rate
// allows, a single closure excepted.
func TestRateIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld("node n1", "node n2", "node n3", "volume shared modes=RWX", "attached shared n1")
		rate := rapid.IntRange(1, 5).Draw(t, "rate")
		w.add(fmt.Sprintf("policy moves-per-minute=%d", rate))
		granted := map[types.UID]time.Time{}
		for i := range rapid.IntRange(1, 25).Draw(t, "steps") {
			w.add(fmt.Sprintf("volume v%d", i), fmt.Sprintf("pod p-%d on=n1 uses=v%d", i, i),
				fmt.Sprintf("attached v%d n1", i), fmt.Sprintf("verdict v%d n1", i))
			for uid, g := range w.decide().Memory.Grants {
				if _, ok := granted[uid]; !ok && strings.HasPrefix(string(uid), "uid-p-") {
					granted[uid] = g.At
				}
			}
			for _, from := range granted {
				n := 0
				for _, at := range granted {
					if !at.Before(from) && at.Before(from.Add(time.Minute)) {
						n++
					}
				}
				if n > rate {
					t.Fatalf("%d pods within the minute from %s, %d may", n, from, rate)
				}
			}
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "pause")) * time.Second)
		}
	})
}

// TestClosureIsClosedAndMinimal compares the closure with a slow and obvious
// one: merge sets of pods and volumes until nothing merges.
func TestClosureIsClosedAndMinimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		if w.policy.Fence == FenceNetwork {
			w.policy.Fence = FenceUnpublish
		}
		for _, a := range w.decide().Answers {
			if len(a.Closure.Volumes) == 0 {
				continue
			}
			want := slowClosure(w, a.Key)
			got := map[string]bool{}
			for _, v := range a.Closure.Volumes {
				got["volume "+v.PV] = true
			}
			for _, p := range a.Closure.Pods {
				got["pod "+p.Name] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("closure of %s (-want +got):\n%s", a.Key, diff)
			}
		}
	})
}

func slowClosure(w *world, key volume.Key) map[string]bool {
	in, node := map[string]bool{}, key.Node
	for size := -1; size != len(in); {
		size = len(in)
		for _, pv := range w.volumes {
			shares := func(other *v1.PersistentVolume) bool {
				return in["volume "+other.Name] && other.Spec.CSI.VolumeHandle == pv.Spec.CSI.VolumeHandle
			}
			if pv.Spec.CSI.Driver == testDriver && (pv.Spec.CSI.VolumeHandle == string(key.Handle) || slices.ContainsFunc(slices.Collect(maps.Values(w.volumes)), shares)) {
				in["volume "+pv.Name] = true
			}
		}
		for _, pod := range w.pods {
			if pod.Spec.NodeName != node || pod.Status.Phase == v1.PodSucceeded {
				continue
			}
			var members []string
			for _, vol := range pod.Spec.Volumes {
				if vol.PersistentVolumeClaim == nil {
					continue
				}
				used := w.volumes[vol.PersistentVolumeClaim.ClaimName]
				if used.Spec.CSI.Driver == testDriver {
					members = append(members, "volume "+used.Name)
				}
			}
			if slices.ContainsFunc(members, func(m string) bool { return in[m] }) {
				in["pod "+pod.Name] = true
				for _, m := range members {
					in[m] = true
				}
			}
		}
	}
	return in
}

// TestOneClosureOneAnswer: volumes that can only move together are answered
// alike, and one of them speaks for all.
func TestOneClosureOneAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		leads, actions := map[string]int{}, map[string]Action{}
		for _, a := range w.decide().Answers {
			if len(a.Closure.Volumes) == 0 {
				continue
			}
			closure := a.Closure.Node + " " + renderClosure(a.Closure)
			if a.Lead {
				leads[closure]++
			}
			if before, ok := actions[closure]; ok && before != a.Action {
				t.Fatalf("%s: %s and %s", closure, before, a.Action)
			}
			actions[closure] = a.Action
		}
		for closure := range actions {
			if leads[closure] != 1 {
				t.Fatalf("%s is spoken for %d times", closure, leads[closure])
			}
		}
	})
}

// TestVetoYieldsNoTargets: a move never concerns a pod that may not be touched,
// a volume that is not attached to the node, or a pod of another node.
func TestVetoYieldsNoTargets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for _, a := range w.decide().Answers {
			if a.Action != ActionMove {
				continue
			}
			node := w.nodes[a.Key.Node]
			if w.policy.Fence == FenceNone && !nodeReady(node) {
				t.Fatalf("%s moves without a fence", a.PV)
			}
			for _, ref := range a.Closure.Pods {
				if why := untouchable(w.pods[ref.Namespace+"/"+ref.Name], node); why != "" {
					t.Fatalf("%s moves pod %s, which is %s", a.PV, ref.Name, why)
				}
			}
			for _, target := range a.Closure.Targets() {
				va := w.attachments["va-"+target.PV+"-"+node.Name]
				if va == nil || va.UID != target.VolumeAttachmentUID || target.Node != node.Name {
					t.Fatalf("target %+v has no attachment", target)
				}
			}
			if v := w.verdicts[a.Key]; !v.FailsFromNode() || v.Suspect() && !slices.Contains(codes(a), CodeAlreadyGranted) {
				t.Fatalf("%s moves for %+v", a.PV, v)
			}
			if v := w.verdicts[volume.Key{Handle: a.Key.Handle}]; v.State == volume.StateInaccessible || v.State == volume.StateDataLoss {
				t.Fatalf("%s moves though everywhere it is %s", a.PV, v.State)
			}
		}
	})
}

// untouchable is the test's own word on a drawn pod.
func untouchable(pod *v1.Pod, node *v1.Node) string {
	owner := ""
	if len(pod.OwnerReferences) > 0 {
		owner = pod.OwnerReferences[0].Kind
	}
	switch {
	case pod.Spec.NodeName != node.Name:
		return "elsewhere"
	case owner != "StatefulSet":
		return "owned by " + owner
	case pod.Status.Phase != v1.PodRunning:
		return string(pod.Status.Phase)
	case pod.Annotations[volume.ScopeKey] == "disabled":
		return "opted out"
	case pod.DeletionTimestamp != nil && nodeReady(node):
		return "being stopped"
	}
	for _, vol := range pod.Spec.Volumes {
		if vol.HostPath != nil {
			return "writing to its host"
		}
	}
	return ""
}
