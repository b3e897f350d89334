package csiprovisioner

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// badInput is what is wrong with a claim, its class, or what they name.
type badInput struct {
	claim   []func(*v1.PersistentVolumeClaim)
	class   map[string]string
	change  []func(*storagev1.StorageClass)
	caps    Capabilities
	sources []runtime.Object
	objects []runtime.Object
	noClass bool
	// what is wrong, in which object, and what to do about it: all three are said.
	what, object, do string
	// soon: it may mend by itself, or by an object that we do not watch, and so is
	// tried again soon.
	soon bool
}

// badInputs are the cases by their names. The message is that of the claim's event.
func badInputs() map[string]badInput {
	type claims = []func(*v1.PersistentVolumeClaim)
	able, placed, modify := Capabilities{CreateDelete: true}, Capabilities{CreateDelete: true, Topology: true}, Capabilities{CreateDelete: true, Modify: true}
	const group, key = "snapshot.storage.k8s.io", "example.com/zone"
	fast := `StorageClass "fast"`
	here := []runtime.Object{node("node-1", map[string]string{key: "a"}), csiNode("node-1", key)}
	return map[string]badInput{
		"parameter: unknown":           {caps: able, class: map[string]string{parameterPrefix + "fstyp": "x"}, what: `parameter "csi.storage.k8s.io/fstyp" is not known`, object: fast, do: "remove it or correct it in a new class"},
		"parameter: two filesystems":   {caps: able, class: map[string]string{parameterFSType: "x", "fstype": "x"}, what: "both name a filesystem", object: fast, do: "keep only the second, in a new class"},
		"template: unknown token":      {caps: able, class: named("${pvc.uid}", "sys"), what: "cannot be resolved: ${pvc.uid}", object: fast, do: "use one of ${pv.name}"},
		"template: token not for it":   {caps: able, class: named("s", "${pvc.name}"), what: "the namespace of the provisioner secret", object: fast, do: "use one of ${pv.name} and ${pvc.namespace}"},
		"template: annotation missing": {caps: able, class: named("${pvc.annotations['team']}", "sys"), what: "cannot be resolved: ${pvc.annotations['team']}", object: fast, do: "an annotation that the claim has"},
		"template: no token":           {caps: able, class: named("$pv.name", "sys"), what: "has a $ that begins no token", object: fast, do: "write tokens as ${pv.name}"},
		"template: no name":            {caps: able, class: named("No_Name", "sys"), what: `resolves to "No_Name", which cannot be one`, object: fast, do: "correct it in a new class"},
		"secret: half":                 {caps: able, class: map[string]string{nodeStageSecret.name: "s"}, what: "the node stage secret needs both a name and a namespace", object: fast, do: "set the parameters"},
		"secret: twice":                {caps: able, class: map[string]string{provisionerSecret.name: "s", provisionerSecret.namespace: "n", "csiProvisionerSecretName": "s"}, what: "mean the same", object: fast, do: "keep only the first"},
		"secret: missing":              {caps: able, class: named("s", "sys"), what: "does not exist", object: "secret sys/s", do: "create it", soon: true},
		"secret: forbidden":            {caps: able, class: named("hidden", "sys"), what: "forbidden", object: "secret sys/hidden", do: "allow get of secrets", soon: true},
		"size: nothing":                {caps: able, claim: claims{sized("0")}, what: "asks for 0, which is no size", object: "claim ns/data", do: "set spec.resources.requests.storage"},
		"size: less than nothing":      {caps: able, claim: claims{sized("-5Gi")}, what: "asks for -5Gi", object: "claim ns/data", do: "set spec.resources.requests.storage"},
		"size: none":                   {caps: able, claim: claims{func(c *v1.PersistentVolumeClaim) { c.Spec.Resources = v1.VolumeResourceRequirements{} }}, what: "asks for no size", object: "claim ns/data", do: "set spec.resources.requests.storage"},
		"access mode: unknown":         {caps: able, claim: claims{modes("Sometimes")}, what: `access mode "Sometimes" is not known`, object: "claim ns/data", do: "correct spec.accessModes"},
		"access mode: none":            {caps: able, claim: claims{modes()}, what: "has no access mode", object: "claim ns/data", do: "name one in spec.accessModes"},
		"selector":                     {caps: able, claim: claims{func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }}, what: "claim Selector is not supported", object: "claim ns/data", do: "remove spec.selector"},
		"class: missing":               {caps: able, noClass: true, what: "does not exist", object: fast, do: "create it", soon: true},
		"driver: cannot":               {what: "does not have CREATE_DELETE_VOLUME", object: "driver csi.example.com", do: "name a StorageClass of another driver"},
		"attributes class: cannot":     {caps: able, claim: claims{gold}, what: "does not have MODIFY_VOLUME", object: `VolumeAttributesClass "gold"`, do: "remove spec.volumeAttributesClassName"},
		"attributes class: missing":    {caps: modify, claim: claims{gold}, what: "does not exist", object: `VolumeAttributesClass "gold"`, do: "create it", soon: true},
		"attributes class: another's":  {caps: modify, claim: claims{gold}, objects: []runtime.Object{attributesClassOf("x.example.com")}, what: `is for driver "x.example.com"`, object: `VolumeAttributesClass "gold"`, do: "name another in the claim"},
		"topology: key of a node": {caps: placed, claim: claims{selected("node-1")}, objects: []runtime.Object{node("node-1", nil), csiNode("node-1", "no key")},
			what: `the topology key "no key", which is no label key`, object: `CSINode "node-1"`, do: "has to report another one", soon: true},
		"topology: keys missing": {caps: placed, claim: claims{selected("node-1")}, objects: []runtime.Object{node("node-1", nil), csiNode("node-1")},
			what: "has no topologyKeys", object: `CSINode "node-1"`, do: "check that the driver's node plugin runs", soon: true},
		"topology: label missing": {caps: placed, claim: claims{selected("node-1")}, objects: []runtime.Object{node("node-1", nil), csiNode("node-1", key)},
			what: "lacks the labels", object: `node "node-1"`, do: "restart the driver's node plugin there", soon: true},
		"topology: allowed nowhere": {caps: placed, claim: claims{selected("node-1")}, objects: here, change: []func(*storagev1.StorageClass){allowing(key)},
			what: "allowedTopologies of the class admit no node", object: fast, do: "correct the class", soon: true},
		"topology: too many": {caps: placed, claim: claims{selected("node-1")}, objects: here, change: []func(*storagev1.StorageClass){allowing(key, make([]string, 10001)...)},
			what: "more than 10000 segments", object: fast, do: "name fewer values", soon: true},
		"topology: no node has the labels": {caps: placed, objects: []runtime.Object{node("node-1", nil), csiNode("node-1", key)},
			what: "no node of the driver has labels for all of them", object: `CSINodes have the topologyKeys ["example.com/zone"]`, do: "restart the driver's node plugins", soon: true},
		"topology: not allowed here": {caps: placed, claim: claims{selected("node-1")}, objects: here, change: []func(*storagev1.StorageClass){allowing(key, "b")},
			what: "none of the allowedTopologies of the class admits", object: `the selected node "node-1"`, do: "correct the class", soon: true},
		"topology: another key": {caps: placed, claim: claims{selected("node-1")}, objects: here, change: []func(*storagev1.StorageClass){allowing("example.com/rack", "a")},
			what: "they may only use the keys", object: `CSINode "node-1"`, do: "correct the class", soon: true},
		"source: snapshot missing":    {caps: able, claim: claims{from(group, "VolumeSnapshot", "snap")}, what: "does not exist", object: "VolumeSnapshot ns/snap", do: "create it, or make the claim again", soon: true},
		"source: snapshot not ready":  {caps: able, claim: claims{from(group, "VolumeSnapshot", "snap")}, sources: snapshotOf(testDriver, map[string]any{"readyToUse": false}, nil), what: "is not ready to use yet", object: "VolumeSnapshot ns/snap", do: "see its status and events", soon: true},
		"source: snapshot too large":  {caps: able, claim: claims{from(group, "VolumeSnapshot", "snap")}, sources: snapshotOf(testDriver, map[string]any{"restoreSize": "2Gi"}, nil), what: "the claim requests 1Gi", object: "VolumeSnapshot ns/snap", do: "of at least 2Gi"},
		"source: snapshot of another": {caps: able, claim: claims{from(group, "VolumeSnapshot", "snap")}, sources: snapshotOf("x.example.com", nil, nil), what: "is of the CSI driver x.example.com", object: "VolumeSnapshotContent content", do: "with a StorageClass of x.example.com"},
		"source: snapshot not bound":  {caps: able, claim: claims{from(group, "VolumeSnapshot", "snap")}, sources: snapshotOf(testDriver, nil, map[string]any{"uid": "other"}), what: "is bound to VolumeSnapshot ns/snap (UID other)", object: "VolumeSnapshotContent content", do: "with a snapshot that is bound"},
		"source: another mode":        {caps: able, claim: claims{block, from(group, "VolumeSnapshot", "snap")}, sources: snapshotOf(testDriver, nil, nil), what: "the claim's volumeMode is Block", object: "VolumeSnapshotContent content", do: "with volumeMode Filesystem"},
		"source: snapshot goes":       {caps: able, claim: claims{from(group, "VolumeSnapshot", "snap")}, sources: going(snapshotOf(testDriver, nil, nil)...), what: "is being deleted", object: "VolumeSnapshot ns/snap", do: "with another data source"},
		"source: no handle":           {caps: able, claim: claims{from(group, "VolumeSnapshot", "snap")}, sources: without(snapshotOf(testDriver, nil, nil), "status", "snapshotHandle"), what: "has no status.snapshotHandle yet", object: "VolumeSnapshotContent content of VolumeSnapshot ns/snap", do: "see its status and events", soon: true},
		"source: claim goes":          {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: going(claimToClone("Bound", "1Gi")), what: "is being deleted", object: "PersistentVolumeClaim ns/src", do: "make it again with another data source"},
		"source: claim lost":          {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: []runtime.Object{claimToClone("Lost", "1Gi")}, what: "has lost its PersistentVolume", object: "PersistentVolumeClaim ns/src", do: "with another data source"},
		"source: claim classless": {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: without([]runtime.Object{claimToClone("Bound", "1Gi")}, "spec", "storageClassName"),
			what: "has no spec.storageClassName", object: "PersistentVolumeClaim ns/src", do: "with another data source"},
		"source: claim's mode":   {caps: able, claim: claims{block, from("", "PersistentVolumeClaim", "src")}, sources: []runtime.Object{claimToClone("Bound", "1Gi")}, what: "the claim's volumeMode is Block", object: "PersistentVolumeClaim ns/src", do: "with volumeMode Filesystem"},
		"source: volume missing": {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: []runtime.Object{claimToClone("Bound", "1Gi")}, what: "does not exist", object: "PersistentVolume pv-src", do: "make the claim again with another data source", soon: true},
		"source: volume of another": {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: []runtime.Object{claimToClone("Bound", "1Gi"), volumeToClone("x.example.com", "src-uid")},
			what: "is of the CSI driver x.example.com", object: "PersistentVolume pv-src of PersistentVolumeClaim ns/src", do: "with a StorageClass of the source's driver"},
		"source: volume not bound": {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: []runtime.Object{claimToClone("Bound", "1Gi"), volumeToClone(testDriver, "other")},
			what: "is not bound to PersistentVolumeClaim ns/src", object: "PersistentVolume pv-src", do: "with another data source"},
		"source: claim missing":   {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, what: "does not exist", object: "PersistentVolumeClaim ns/src", do: "create it", soon: true},
		"source: claim not bound": {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: []runtime.Object{claimToClone("Pending", "1Gi")}, what: "is not bound yet", object: "PersistentVolumeClaim ns/src", do: "see its events", soon: true},
		"source: claim too large": {caps: able, claim: claims{from("", "PersistentVolumeClaim", "src")}, sources: []runtime.Object{claimToClone("Bound", "5Gi")}, what: "the claim requests 1Gi", object: "PersistentVolumeClaim ns/src", do: "of at least 5Gi"},
		"source: itself":          {caps: able, claim: claims{from("", "PersistentVolumeClaim", "data")}, what: "the claim names itself", object: "data source", do: "with another one"},
		"source: another namespace": {caps: able, claim: claims{func(c *v1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "src", Namespace: ptr("other")}
		}}, what: "not supported", object: "PersistentVolumeClaim other/src", do: "make the claim in namespace other"},
	}
}

// TestBadInputIsToldOnTheClaim drives each through the controller: the event says
// what is wrong, where, and what to do; the driver is not called, and nothing is
// written down.
func TestBadInputIsToldOnTheClaim(t *testing.T) {
	for name, c := range badInputs() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := append([]runtime.Object{claim(c.claim...), secretOf("sys", "hidden", canary)}, c.objects...)
				if !c.noClass {
					objects = append(objects, class(c.class, c.change...))
				}
				w := newCluster(t, c.caps, c.sources, objects...)
				first := w.rest(100 * time.Millisecond)
				// The class is heard of after the claim, and then it is looked at again.
				if len(slices.Compact(slices.Clone(first))) != 1 || !strings.HasPrefix(first[0], "Warning ProvisioningFailed ") {
					t.Fatalf("the events are %q", first)
				}
				for _, text := range []string{c.what, c.object, c.do} {
					if !strings.Contains(first[0], text) {
						t.Errorf("%q is not said: %s", text, first[0])
					}
				}
				if again := len(w.rest(retryMax/2)) > 0; again != c.soon {
					t.Errorf("tried again soon: %v, want %v", again, c.soon)
				}
				if again := w.rest(retryMax); len(again) == 0 {
					t.Error("it is never tried again")
				}
				w.wantCalls(0, 0)
				if len(w.journal.ever) > 0 {
					t.Error("something was written down")
				}
				pvs, err := w.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
				if err != nil || len(pvs.Items) > 0 {
					t.Errorf("PersistentVolumes %v, %v", pvs.Items, err)
				}
			})
		})
	}
}
