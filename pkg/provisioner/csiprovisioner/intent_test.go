package csiprovisioner

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
)

var stringMaps = rapid.MapOfN(rapid.String(), rapid.String(), 0, 4)

func drawTopologies(t *rapid.T, label string) (out []*csi.Topology) {
	for range rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, 300)).Draw(t, label) {
		out = append(out, &csi.Topology{Segments: stringMaps.Draw(t, "segments")})
	}
	return out
}

func drawRequest(t *rapid.T) *csi.CreateVolumeRequest {
	req := &csi.CreateVolumeRequest{
		Name:              rapid.StringN(1, 60, -1).Draw(t, "name"),
		CapacityRange:     &csi.CapacityRange{RequiredBytes: rapid.Int64().Draw(t, "bytes"), LimitBytes: rapid.Int64().Draw(t, "limit")},
		Parameters:        stringMaps.Draw(t, "parameters"),
		MutableParameters: stringMaps.Draw(t, "mutable"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "capabilities") {
		capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_Mode(rapid.Int32Range(0, 20).Draw(t, "mode"))}}
		if rapid.Bool().Draw(t, "block") {
			capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		} else {
			capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
				FsType: rapid.String().Draw(t, "fs"), MountFlags: rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "flags"),
			}}
		}
		req.VolumeCapabilities = append(req.VolumeCapabilities, capability)
	}
	switch rapid.IntRange(0, 2).Draw(t, "source") {
	case 1:
		req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: rapid.String().Draw(t, "sid")}}}
	case 2:
		req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: rapid.String().Draw(t, "vid")}}}
	}
	if rapid.Bool().Draw(t, "topology") {
		req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: drawTopologies(t, "requisite"), Preferred: drawTopologies(t, "preferred")}
	}
	return req
}

func drawIntent(t *rapid.T) *intent {
	in := &intent{
		Claim:    v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "data", UID: types.UID(rapid.StringMatching(`[a-z0-9-]{1,36}`).Draw(t, "uid"))},
		Request:  drawRequest(t),
		Migrated: rapid.Bool().Draw(t, "migrated"), Topology: rapid.Bool().Draw(t, "topological"), SelectedNode: rapid.StringMatching(`[a-z]*`).Draw(t, "node"),
		Volume: &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: stringMaps.Draw(t, "annotations")},
			Spec: v1.PersistentVolumeSpec{
				MountOptions: []string{"a"}, VolumeMode: ptr(v1.PersistentVolumeBlock),
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeAttributes: map[string]string{attributeIdentity: "me"}}},
			},
		},
	}
	if rapid.Bool().Draw(t, "secret") {
		in.Secret = &v1.SecretReference{Namespace: "sys", Name: "s"}
	}
	if rapid.Bool().Draw(t, "of") {
		in.Source = &source.Ref{Kind: source.Claim, Namespace: "ns", Name: "src", UID: "u"}
	}
	return in
}

// TestIntentIsReadAsItWasWritten, for any request.
func TestIntentIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawIntent(t)
		record, err := in.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeIntent(string(in.Claim.UID), record)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(in.Request, got.Request) {
			t.Fatalf("wrote %v, read %v", in.Request, got.Request)
		}
		was, is := *in, *got
		was.Request, is.Request = nil, nil
		if len(was.Volume.Annotations) == 0 {
			was.Volume.Annotations, is.Volume.Annotations = nil, nil
		}
		if diff := cmp.Diff(was, is, cmp.AllowUnexported(intent{})); diff != "" {
			t.Fatalf("(-wrote +read):\n%s", diff)
		}
	})
}

// TestGarbageIsNoIntent: nothing panics, and whatever is read back is whole.
func TestGarbageIsNoIntent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawIntent(t)
		record, err := in.encode()
		if err != nil {
			t.Fatal(err)
		}
		bytes := []byte(record)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			at := rapid.IntRange(0, len(bytes)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				bytes[at] = rapid.Byte().Draw(t, "byte")
			case 1:
				bytes = bytes[:at+1]
			case 2:
				bytes = append(bytes, bytes[at:]...)
			}
		}
		got, err := decodeIntent(string(in.Claim.UID), string(bytes))
		if err == nil && (got.Request == nil || got.Request.Name == "" || got.Volume.Spec.CSI == nil || got.Claim.UID != in.Claim.UID) {
			t.Fatalf("half an intent was read: %+v", got)
		}
		unreadOf(string(bytes))
	})
}

// TestRecordsThatCannotBeRead are kept, and their claim and source are let be.
func TestRecordsThatCannotBeRead(t *testing.T) {
	whole, err := (&intent{
		Claim: v1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid-1"}, Request: &csi.CreateVolumeRequest{Name: "pv"}, Source: &copyOf("snap").Ref,
		Volume: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{}}}},
	}).encode()
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(from, to string) string {
		if !strings.Contains(whole, from) {
			t.Fatalf("%s is not in %s", from, whole)
		}
		return strings.Replace(whole, from, to, 1)
	}
	for name, c := range map[string]struct {
		record string
		// any: it may be a copy of anything.
		any bool
	}{
		"empty":                       {"", true},
		"no JSON":                     {"sure", true},
		"another type":                {"[]", true},
		"null":                        {"null", false},
		"nothing in it":               {"{}", false},
		"cut off":                     {whole[:len(whole)-1], true},
		"a field of a newer version":  {replaced(`{"claim"`, `{"encryption":"aes","claim"`), false},
		"a field of the volume":       {replaced(`"spec":{`, `"spec":{"quality":1,`), false},
		"a field of the request":      {replaced(`"name":"pv"`, `"name":"pv","tenant":"x"`), false},
		"no request":                  {replaced(`"request":{"name":"pv"}`, `"request":null`), false},
		"a packed request, broken":    {replaced(`"request":{"name":"pv"}`, `"packedRequest":"AAAA"`), false},
		"no UID":                      {replaced(`"uid":"uid-1"`, `"uid":""`), false},
		"the UID of another":          {replaced(`"uid":"uid-1"`, `"uid":"uid-2"`), false},
		"no name":                     {replaced(`{"name":"pv"}`, `{}`), false},
		"no volume":                   {replaced(`"volume":{`, `"volume":null,"was":{`), false},
		"something after the intent":  {whole + "{}", true},
		"an intent whose claim is []": {replaced(`"claim":{`, `"claim":[],"was":{`), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.journal.records["uid-1"] = c.record
			if begun := w.restart(); len(begun) > 0 {
				t.Errorf("it was read: %v", begun)
			}
			w.fails(options(claim(), class(nil)), "NoChange", "the journal has a record of claim ns/data that this version cannot read")
			w.p.Settle("uid-1")
			w.wantCalls(0, 0)
			if got := w.journal.records["uid-1"]; got != c.record {
				t.Errorf("the record is now %q", got)
			}
			if got := w.p.Needs(source.Ref{Kind: source.Snapshot, Namespace: "ns", Name: "foreign"}); got != c.any {
				t.Errorf("every source is needed: %v, want %v", got, c.any)
			}
			if strings.Contains(c.record, `"source":{`) && !w.p.Needs(copyOf("snap").Ref) {
				t.Error("its source is not needed")
			}
			// The others are not held up.
			w.made(options(claim(func(c *v1.PersistentVolumeClaim) { c.UID = "uid-3" }), class(nil)))
		})
	}
}

// TestRequestForThousandsOfNodesFitsIntoThePage of the journal, many times.
func TestRequestForThousandsOfNodesFitsIntoThePage(t *testing.T) {
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprintf("ip-10-%d-%d-%d.eu-west-1.compute.internal", i/2500, i/50%50, i*7919%256))
	}
	w := newWorld(t, nil)
	w.caps.Topology, w.topology.answer = true, zones(names...)
	w.made(options(claim(), class(nil)))
	record := w.journal.records["uid-1"]
	plain, err := protojson.Marshal(w.driver.created[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of the request are %d in the journal", len(plain), len(record))
	if len(plain) < journal.DefaultPageBytes || len(record) > journal.DefaultPageBytes/4 {
		t.Errorf("%d bytes of the request are %d in the journal", len(plain), len(record))
	}
	w.restart()
	w.made(options(claim(), class(nil)))
	if !proto.Equal(w.driver.created[0], w.driver.created[1]) {
		t.Error("the request is another one")
	}
}

// TestRecordHasTheFieldsThatItHad: a journal outlives an update, so a name in it
// does not change.
func TestRecordHasTheFieldsThatItHad(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Clock = clocktesting.NewFakePassiveClock(began) }, secretOf("sys", "s", canary))
	w.caps.Topology, w.topology.answer, w.sources.answer = true, zones("a"), copyOf("snap")
	w.made(onNode(options(claim(), class(named("s", "sys"))), "node-1"))
	var got map[string]any
	if err := json.Unmarshal([]byte(w.journal.ever[0]), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "volume")
	want := map[string]any{
		"claim":  map[string]any{"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "ns", "name": "data", "uid": "uid-1", "resourceVersion": "7"},
		"secret": map[string]any{"name": "s", "namespace": "sys"}, "topology": true, "selectedNode": "node-1", "since": "2026-03-01T12:00:00Z",
		"source": map[string]any{"kind": "VolumeSnapshot", "namespace": "ns", "name": "snap", "uid": "snap-uid"},
		"request": map[string]any{
			"name": "pvc-uid-1", "capacityRange": map[string]any{"requiredBytes": "1073741824"},
			"volumeCapabilities":        []any{map[string]any{"mount": map[string]any{}, "accessMode": map[string]any{"mode": "SINGLE_NODE_WRITER"}}},
			"volumeContentSource":       map[string]any{"snapshot": map[string]any{"snapshotId": "sid-snap"}},
			"accessibilityRequirements": map[string]any{"requisite": []any{map[string]any{"segments": map[string]any{"example.com/zone": "a"}}}, "preferred": []any{map[string]any{"segments": map[string]any{"example.com/zone": "a"}}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
