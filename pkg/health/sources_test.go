package health

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const driver = "sim.example.com"

// A volume, its claim and a pod that uses it, all bound to one another.

func newPV(name string, handle volume.Handle) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			ClaimRef:    &v1.ObjectReference{Namespace: "default", Name: "claim-" + name, UID: types.UID("uid-claim-" + name)},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: string(handle)},
			},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
}

func newClaim(pv string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim-" + pv, UID: types.UID("uid-claim-" + pv)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: pv},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
}

func newPod(name, node, pv string, conditions ...v1.VolumeHealthCondition) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{
			NodeName: node,
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + pv},
			}}},
		},
		Status: v1.PodStatus{
			Phase:        v1.PodRunning,
			VolumeHealth: []v1.PodVolumeHealth{{Name: "data", HealthConditions: conditions}},
		},
	}
}

var pathsLost = v1.VolumeHealthCondition{Status: v1.VolumeHealthInaccessible, Reason: "PathsLost", Message: "no path"}

type fakeObjects struct {
	pv *v1.PersistentVolume
	cl *v1.PersistentVolumeClaim
}

func (f fakeObjects) claim(namespace, name string) *v1.PersistentVolumeClaim {
	if f.cl == nil || f.cl.Namespace != namespace || f.cl.Name != name {
		return nil
	}
	return f.cl
}

func (f fakeObjects) persistentVolume(name string) *v1.PersistentVolume {
	if f.pv == nil || f.pv.Name != name {
		return nil
	}
	return f.pv
}

func TestPodReadings(t *testing.T) {
	key := volume.Key{Handle: "vol", Node: "n1"}
	said := []volume.Condition{{Kind: volume.Inaccessible, Reason: "PathsLost", Message: "no path"}}
	ephemeral := func(pod *v1.Pod, cl *v1.PersistentVolumeClaim) {
		pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
		cl.Name = pod.Name + "-data"
	}
	for name, c := range map[string]struct {
		change     func(pod *v1.Pod, pv *v1.PersistentVolume, cl *v1.PersistentVolumeClaim)
		want       bool
		unresolved bool
		conditions []volume.Condition
	}{
		"bound all round": {want: true, conditions: said},
		"healthy in words": {change: func(p *v1.Pod, _ *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
			p.Status.VolumeHealth[0].HealthConditions = nil
		}, want: true},
		"category unknown": {change: func(p *v1.Pod, _ *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
			p.Status.VolumeHealth[0].HealthConditions[0].Status = "Haunted"
		}, want: true, conditions: []volume.Condition{{Kind: volume.UnknownCondition, Reason: "PathsLost", Message: "no path"}}},
		"pod without a node": {change: func(p *v1.Pod, _ *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { p.Spec.NodeName = "" }},
		"pod finished":       {change: func(p *v1.Pod, _ *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { p.Status.Phase = v1.PodFailed }},
		"no status":          {change: func(p *v1.Pod, _ *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { p.Status.VolumeHealth = nil }},
		"no such volume": {change: func(p *v1.Pod, _ *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
			p.Status.VolumeHealth[0].Name = "other"
		}},
		"another driver": {change: func(_ *v1.Pod, pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { pv.Spec.CSI.Driver = "other" }},
		"no CSI":         {change: func(_ *v1.Pod, pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { pv.Spec.CSI = nil }},
		"claim forged": {change: func(_ *v1.Pod, pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
			pv.Spec.ClaimRef.UID = "somebody"
		}},
		"claim of another place": {change: func(_ *v1.Pod, pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) {
			pv.Spec.ClaimRef.Namespace = "other"
		}},
		"volume not claimed":   {change: func(_ *v1.Pod, pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) { pv.Spec.ClaimRef = nil }},
		"claim not known yet":  {change: func(_ *v1.Pod, _ *v1.PersistentVolume, cl *v1.PersistentVolumeClaim) { cl.Name = "other" }, unresolved: true},
		"claim not bound yet":  {change: func(_ *v1.Pod, _ *v1.PersistentVolume, cl *v1.PersistentVolumeClaim) { cl.Spec.VolumeName = "" }, unresolved: true},
		"volume not known yet": {change: func(_ *v1.Pod, _ *v1.PersistentVolume, cl *v1.PersistentVolumeClaim) { cl.Spec.VolumeName = "other" }, unresolved: true},
		"another's ephemeral one": {change: func(p *v1.Pod, pv *v1.PersistentVolume, cl *v1.PersistentVolumeClaim) {
			ephemeral(p, cl)
			pv.Spec.ClaimRef.Name = cl.Name
		}},
		"own ephemeral one": {change: func(p *v1.Pod, pv *v1.PersistentVolume, cl *v1.PersistentVolumeClaim) {
			ephemeral(p, cl)
			pv.Spec.ClaimRef.Name = cl.Name
			cl.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pod"))}
		}, want: true, conditions: said},
	} {
		t.Run(name, func(t *testing.T) {
			pod, pv, cl := newPod("p", "n1", "pv", pathsLost), newPV("pv", "vol"), newClaim("pv")
			if c.change != nil {
				c.change(pod, pv, cl)
			}
			var want []volume.Reading
			if c.want {
				want = []volume.Reading{{Key: key, Source: volume.SourcePodStatus, Conditions: c.conditions, Started: t0}}
			}
			got, unresolved := podReadings(driver, pod, fakeObjects{pv, cl}, t0)
			if diff := cmp.Diff(want, got); diff != "" || unresolved != c.unresolved {
				t.Fatalf("unresolved %v, want %v; readings:\n%s", unresolved, c.unresolved, diff)
			}
		})
	}
}

func newCSINode(name string, conditions ...storagev1.StorageHealthCondition) *storagev1.CSINode {
	node := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}}},
	}
	if len(conditions) > 0 {
		node.Status.StorageHealth = []storagev1.StorageHealth{
			{Name: "other.example.com", HealthConditions: []storagev1.StorageHealthCondition{{Status: storagev1.StorageUnreachable, Reason: "NotOurs"}}},
			{Name: driver, HealthConditions: conditions},
		}
	}
	return node
}

func TestCSINodeReadings(t *testing.T) {
	block := onNode{handle: "block", accessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, volumeMode: v1.PersistentVolumeBlock}
	file := onNode{handle: "file", accessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, volumeMode: v1.PersistentVolumeFilesystem}
	unreachable := storagev1.StorageHealthCondition{Status: storagev1.StorageUnreachable, Reason: "R"}
	with := func(change func(*storagev1.StorageHealthCondition)) storagev1.StorageHealthCondition {
		c := unreachable
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		node *storagev1.CSINode
		want map[volume.Handle]volume.State
	}{
		"unreachable":         {newCSINode("n1", unreachable), map[volume.Handle]volume.State{"block": volume.StateInaccessible, "file": volume.StateInaccessible}},
		"degraded":            {newCSINode("n1", with(func(c *storagev1.StorageHealthCondition) { c.Status = storagev1.StorageDegraded })), map[volume.Handle]volume.State{"block": volume.StateDegraded, "file": volume.StateDegraded}},
		"unknown category":    {newCSINode("n1", with(func(c *storagev1.StorageHealthCondition) { c.Status = "Haunted" })), map[volume.Handle]volume.State{"block": volume.StateDegraded, "file": volume.StateDegraded}},
		"one access mode":     {newCSINode("n1", with(func(c *storagev1.StorageHealthCondition) { c.AccessMode = ptr.To(v1.ReadWriteMany) })), map[volume.Handle]volume.State{"block": volume.StateInaccessible, "file": volume.StateHealthy}},
		"one volume mode":     {newCSINode("n1", with(func(c *storagev1.StorageHealthCondition) { c.VolumeMode = ptr.To(v1.PersistentVolumeFilesystem) })), map[volume.Handle]volume.State{"block": volume.StateHealthy, "file": volume.StateInaccessible}},
		"entry taken away":    {newCSINode("n1"), map[volume.Handle]volume.State{"block": volume.StateHealthy, "file": volume.StateHealthy}},
		"driver unregistered": {&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, map[volume.Handle]volume.State{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[volume.Handle]volume.State{}
			for _, r := range csiNodeReadings(driver, c.node, []onNode{block, file}, t0) {
				if r.Key.Node != "n1" || r.Source != volume.SourceCSINodeStatus || !r.Started.Equal(t0) {
					t.Errorf("reading %+v", r)
				}
				got[r.Key.Handle], _ = classify(r.Conditions)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestBoundHandle(t *testing.T) {
	released := newPV("pv", "vol")
	released.Status.Phase = v1.VolumeReleased
	other := newPV("pv", "vol")
	other.Spec.CSI.Driver = "other"
	for name, c := range map[string]struct {
		pv   *v1.PersistentVolume
		want volume.Handle
	}{
		"bound": {newPV("pv", "vol"), "vol"}, "released": {released, ""}, "another driver": {other, ""},
		"no CSI": {&v1.PersistentVolume{}, ""}, "none": {nil, ""},
	} {
		if got := boundHandle(driver, c.pv); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSourceOf(t *testing.T) {
	inline := func(driver string) *v1.PersistentVolumeSpec { return &newPVFor(driver).Spec }
	for name, c := range map[string]struct {
		source storagev1.VolumeAttachmentSource
		pv     string
		handle volume.Handle
	}{
		"by name":                {storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")}, "pv", ""},
		"inline":                 {storagev1.VolumeAttachmentSource{InlineVolumeSpec: inline(driver)}, "", "vol"},
		"inline, another driver": {storagev1.VolumeAttachmentSource{InlineVolumeSpec: inline("other")}, "", ""},
		"empty":                  {storagev1.VolumeAttachmentSource{}, "", ""},
	} {
		pv, handle := sourceOf(driver, &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Source: c.source}})
		if pv != c.pv || handle != c.handle {
			t.Errorf("%s: %q %q, want %q %q", name, pv, handle, c.pv, c.handle)
		}
	}
}

func newPVFor(driver string) *v1.PersistentVolume {
	pv := newPV("pv", "vol")
	pv.Spec.CSI.Driver = driver
	return pv
}
