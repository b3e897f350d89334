package simdriver

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

const zoneKey = "example.com/zone"

func zone(z string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{zoneKey: z}}
}

// newVolume is a request for a volume, with changes.
func newVolume(name string, change ...func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{oneNode()}}
	for _, c := range change {
		c(request)
	}
	return request
}

func sized(bytes int64) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: bytes} }
}

func within(requisite []*csi.Topology, preferred ...*csi.Topology) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) {
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: requisite, Preferred: preferred}
	}
}

func cloneOf(id string) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) {
		r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
	}
}

func (r *rig) create(request *csi.CreateVolumeRequest) *csi.Volume {
	r.t.Helper()
	response, err := r.CreateVolume(r.t.Context(), request)
	r.must(err)
	return response.GetVolume()
}

func placed(cfg *Config) { cfg.Topology, cfg.Capacity, cfg.MaximumVolumeSize = true, 100, 80 }

// capabilities are the names of what the controller and the plugin tell of.
func (r *rig) capabilities() map[string]bool {
	r.t.Helper()
	told := map[string]bool{}
	controller, err := r.ControllerGetCapabilities(r.t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	r.must(err)
	for _, capability := range controller.GetCapabilities() {
		told[capability.GetRpc().GetType().String()] = true
	}
	plugin, err := csi.NewIdentityClient(r.conn).GetPluginCapabilities(r.t.Context(), &csi.GetPluginCapabilitiesRequest{})
	r.must(err)
	for _, capability := range plugin.GetCapabilities() {
		told[capability.GetService().GetType().String()] = true
	}
	return told
}

// TestTopologyIsOptional: without the flags the driver tells of neither topology
// nor capacity, and refuses to be asked about them.
func TestTopologyIsOptional(t *testing.T) {
	r := newRig(t)
	plain := r.capabilities()
	if plain["VOLUME_ACCESSIBILITY_CONSTRAINTS"] || plain["GET_CAPACITY"] || !plain["CLONE_VOLUME"] {
		t.Errorf("without flags: %v", plain)
	}
	_, err := r.CreateVolume(t.Context(), newVolume("v", within([]*csi.Topology{zone("a")})))
	wantCode(t, err, "InvalidArgument")
	_, err = r.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	wantCode(t, err, "Unimplemented")
	if got := r.create(newVolume("v")); len(got.GetAccessibleTopology()) > 0 {
		t.Errorf("without topology: %v", got)
	}
	all := newRig(t, placed).capabilities()
	if !all["VOLUME_ACCESSIBILITY_CONSTRAINTS"] || !all["GET_CAPACITY"] {
		t.Errorf("with all flags: %v", all)
	}
}

// TestPlacement: the preferred segment that has room, the same on a repeat, and
// only for nodes that are there.
func TestPlacement(t *testing.T) {
	r := newRig(t, placed)
	inA := r.nodeHere("node-a", func(cfg *Config) { cfg.NodeTopology = zone("a").GetSegments() })
	r.nodeHere("node-b", func(cfg *Config) { cfg.NodeTopology = zone("b").GetSegments() })
	info, err := inA.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	r.must(err)
	if diff := cmp.Diff(zone("a"), info.GetAccessibleTopology(), protocmp.Transform()); diff != "" {
		t.Errorf("NodeGetInfo (-want +got):\n%s", diff)
	}
	both := []*csi.Topology{zone("a"), zone("b")}
	for _, test := range []struct {
		request *csi.CreateVolumeRequest
		want    string
		code    codes.Code
	}{
		{newVolume("v1", sized(70), within(both, zone("b"))), "b", codes.OK},
		{newVolume("v2", sized(70), within(both, zone("b"))), "a", codes.OK},
		{newVolume("v1", sized(70), within(both, zone("a"))), "b", codes.OK},
		{newVolume("v3", sized(70), within(both)), "", codes.ResourceExhausted},
		{newVolume("v4", sized(90), within(both)), "", codes.OutOfRange},
		{newVolume("v1", sized(70), within([]*csi.Topology{zone("a")})), "", codes.AlreadyExists},
		{newVolume("v5", within(nil, &csi.Topology{})), "", codes.InvalidArgument},
		{newVolume("v6"), "", codes.OK},
	} {
		response, err := r.CreateVolume(t.Context(), test.request)
		wantCode(t, err, test.code.String())
		var want []*csi.Topology
		if test.want != "" {
			want = append(want, zone(test.want))
		}
		if diff := cmp.Diff(want, response.GetVolume().GetAccessibleTopology(), protocmp.Transform()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.request, diff)
		}
	}
	wantCode(t, r.publish("vol-v1", "node-a"), "InvalidArgument")
	r.must(r.publish("vol-v1", "node-b"))
	r.must(r.publish("vol-v6", "node-a"))
}

// TestGetCapacity follows a segment as volumes come and go and limits change.
func TestGetCapacity(t *testing.T) {
	r := newRig(t, placed)
	for _, z := range []string{"a", "b"} {
		r.nodeHere("node-"+z, func(cfg *Config) { cfg.NodeTopology = zone(z).GetSegments() })
	}
	want := func(at *csi.Topology, available, largest int64) {
		t.Helper()
		got, err := r.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: at})
		r.must(err)
		if got.GetAvailableCapacity() != available || got.GetMaximumVolumeSize().GetValue() != largest {
			t.Errorf("capacity of %v: %v, want %d and %d", at, got, available, largest)
		}
	}
	want(zone("a"), 100, 80)
	want(nil, 200, 80)
	volume := r.create(newVolume("v", sized(30), within([]*csi.Topology{zone("a")})))
	want(zone("a"), 70, 80)
	want(zone("b"), 100, 80)
	r.must(r.ctl.SetLimit(t.Context(), simctl.Limit{Segments: zone("a").GetSegments(), Bytes: ptr.To[int64](20)}))
	want(zone("a"), 0, 0)
	_, err := r.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: volume.GetVolumeId()})
	r.must(err)
	want(zone("a"), 20, 0)
	r.must(r.ctl.SetLimit(t.Context(), simctl.Limit{}))
	want(zone("b"), math.MaxInt64, 0)
	block := &csi.VolumeCapability{AccessMode: oneNode().GetAccessMode(),
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	got, err := r.GetCapacity(t.Context(), &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{block}})
	if err != nil || got.GetAvailableCapacity() != 0 {
		t.Errorf("for what the driver cannot make: %v, %v", got, err)
	}
}

// TestCopiesOverCSI: content and content_source of a clone and of a snapshot.
func TestCopiesOverCSI(t *testing.T) {
	r := newRig(t)
	source := r.create(newVolume("source", sized(10)))
	r.must(os.WriteFile(filepath.Join(r.data(source.GetVolumeId()), "log"), []byte("x"), 0o600))
	taken, err := r.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: source.GetVolumeId()})
	r.must(err)
	if got := taken.GetSnapshot(); got.GetSizeBytes() != 10 || !got.GetReadyToUse() || got.GetSourceVolumeId() != source.GetVolumeId() || got.GetCreationTime().AsTime().IsZero() {
		t.Errorf("snapshot: %v", got)
	}
	fromSnapshot := func(request *csi.CreateVolumeRequest) {
		request.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: taken.GetSnapshot().GetSnapshotId()}}}
	}
	for name, change := range map[string]func(*csi.CreateVolumeRequest){"clone": cloneOf(source.GetVolumeId()), "restored": fromSnapshot} {
		request := newVolume(name, change)
		for range 2 {
			volume := r.create(request)
			if diff := cmp.Diff(request.GetVolumeContentSource(), volume.GetContentSource(), protocmp.Transform()); diff != "" || volume.GetCapacityBytes() != 10 {
				t.Errorf("%v: content source (-want +got):\n%s", volume, diff)
			}
		}
		if content, err := os.ReadFile(filepath.Join(r.data("vol-"+name), "log")); err != nil || string(content) != "x" {
			t.Errorf("%s holds %q, %v", name, content, err)
		}
	}
	for code, request := range map[string]*csi.CreateVolumeRequest{
		"OutOfRange":      newVolume("small", sized(9), cloneOf(source.GetVolumeId())),
		"NotFound":        newVolume("of-none", cloneOf("vol-none")),
		"AlreadyExists":   newVolume("clone"),
		"InvalidArgument": newVolume("of-nothing", func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }),
	} {
		_, err := r.CreateVolume(t.Context(), request)
		wantCode(t, err, code)
	}
}

// TestListSnapshots: filters, pages, and tokens that are not the driver's.
func TestListSnapshots(t *testing.T) {
	r := newRig(t)
	a, b := r.volume("a"), r.volume("b")
	for i := range 5 {
		of := a
		if i == 3 {
			of = b
		}
		_, err := r.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: fmt.Sprint("s", i), SourceVolumeId: of})
		r.must(err)
	}
	list := func(request *csi.ListSnapshotsRequest) (ids []string, token string) {
		t.Helper()
		response, err := r.ListSnapshots(t.Context(), request)
		r.must(err)
		for _, entry := range response.GetEntries() {
			ids = append(ids, entry.GetSnapshot().GetSnapshotId())
		}
		return ids, response.GetNextToken()
	}
	var got []string
	for token := ""; ; {
		page, next := list(&csi.ListSnapshotsRequest{MaxEntries: 2, SourceVolumeId: a, StartingToken: token})
		got = append(got, page...)
		if token = next; token == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"snap-s0", "snap-s1", "snap-s2", "snap-s4"}, got); diff != "" {
		t.Errorf("of one volume (-want +got):\n%s", diff)
	}
	if one, _ := list(&csi.ListSnapshotsRequest{SnapshotId: "snap-s3"}); len(one) != 1 {
		t.Errorf("one snapshot: %v", one)
	}
	if none, _ := list(&csi.ListSnapshotsRequest{SnapshotId: "snap-s3", SourceVolumeId: a}); len(none) > 0 {
		t.Errorf("both filters: %v", none)
	}
	_, err := r.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "nonsense"})
	wantCode(t, err, "Aborted")
	_, err = r.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "snap-none"})
	wantCode(t, err, "NotFound")
}

// TestParameters: what comes back as the volume's context, and what can change.
func TestParameters(t *testing.T) {
	r := newRig(t)
	request := newVolume("v", func(r *csi.CreateVolumeRequest) {
		r.Parameters = map[string]string{"tier": "fast", "context/fsync": "true", "context/": "no key"}
		r.MutableParameters = map[string]string{"iops": "1", "depth": "2"}
	})
	volume := r.create(request)
	if diff := cmp.Diff(map[string]string{"fsync": "true"}, volume.GetVolumeContext()); diff != "" {
		t.Errorf("context (-want +got):\n%s", diff)
	}
	modify := func(id string, parameters map[string]string) error {
		_, err := r.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: parameters})
		return err
	}
	r.must(modify(volume.GetVolumeId(), map[string]string{"iops": "9"}))
	wantCode(t, modify("vol-none", map[string]string{"iops": "9"}), "NotFound")
	wantCode(t, modify(volume.GetVolumeId(), map[string]string{"IOPS": "9"}), "InvalidArgument")
	all, err := r.ctl.Volumes(t.Context())
	r.must(err)
	want := []simctl.Volume{{ID: "vol-v", Name: "v", Parameters: request.GetParameters(), Mutable: map[string]string{"iops": "9", "depth": "2"}}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

// TestCalls: how often, with which secrets, and whether a repeat was the same.
func TestCalls(t *testing.T) {
	r := newRig(t)
	request := func(password string, bytes int64) *csi.CreateVolumeRequest {
		return newVolume("v", sized(bytes), func(r *csi.CreateVolumeRequest) {
			r.Secrets = map[string]string{"user": "u", "password": password}
		})
	}
	r.inject(simctl.Fault{Method: "CreateVolume", Volume: "v", Code: codes.Aborted, Times: 1})
	_, err := r.CreateVolume(t.Context(), request("hunter2", 10))
	wantCode(t, err, "Aborted")
	r.create(request("hunter3", 10))
	r.create(request("hunter3", 9))
	_, err = r.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "vol-v"})
	r.must(err)
	counts, err := r.ctl.Counts(t.Context())
	r.must(err)
	if diff := cmp.Diff(simctl.Counts{"CreateVolume": 3, "DeleteVolume": 1}, counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	calls, err := r.ctl.Calls(t.Context(), "CreateVolume")
	r.must(err)
	if len(calls) != 3 || calls[0].Digest != calls[1].Digest || calls[1].Digest == calls[2].Digest {
		t.Fatalf("calls: %+v", calls)
	}
	for i, code := range []string{"Aborted", "OK", "OK"} {
		if diff := cmp.Diff([]string{"password", "user"}, calls[i].SecretKeys); diff != "" || calls[i].Name != "v" || calls[i].Code != code {
			t.Errorf("call %d: %+v\n%s", i, calls[i], diff)
		}
	}
	var told csi.CreateVolumeRequest
	r.must(protojson.Unmarshal(calls[0].Request, &told))
	if diff := cmp.Diff(newVolume("v", sized(10)), &told, protocmp.Transform()); diff != "" {
		t.Errorf("the request that is told (-want +got):\n%s", diff)
	}
	deletes, err := r.ctl.Calls(t.Context(), "DeleteVolume")
	r.must(err)
	if len(deletes) != 1 || deletes[0].Volume != "vol-v" || deletes[0].SecretKeys != nil {
		t.Errorf("deletes: %+v", deletes)
	}
}

// TestMisbehaves: each wrong reply, the volume behind it, and none when it is
// switched off or meant for another volume.
func TestMisbehaves(t *testing.T) {
	r := newRig(t, placed)
	source := r.create(newVolume("source", sized(5)))
	request := newVolume("v", sized(10), cloneOf(source.GetVolumeId()), within([]*csi.Topology{zone("a")}))
	right := r.create(request)
	reply := func(create string) *csi.Volume {
		t.Helper()
		r.must(r.ctl.Misbehave(t.Context(), simctl.Misbehavior{Create: misbehave.Create(create), Name: "v"}))
		return r.create(request)
	}
	if got := reply("smaller"); got.GetCapacityBytes() != 9 {
		t.Errorf("smaller: %v", got)
	}
	if got := reply("no-volume"); got != nil {
		t.Errorf("no volume: %v", got)
	}
	if got := reply("no-source"); got.GetContentSource() != nil || got.GetVolumeId() != right.GetVolumeId() {
		t.Errorf("no source: %v", got)
	}
	if got := reply("empty-topology"); len(got.GetAccessibleTopology()) != 1 || len(got.GetAccessibleTopology()[0].GetSegments()) > 0 {
		t.Errorf("empty topology: %v", got)
	}
	one, two := reply("other-id").GetVolumeId(), reply("other-id").GetVolumeId()
	if one == two || one == right.GetVolumeId() || two == right.GetVolumeId() {
		t.Errorf("other IDs: %s, %s, at first %s", one, two, right.GetVolumeId())
	}
	for _, id := range []string{one, two} {
		_, err := r.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
		r.must(err)
	}
	if got := r.create(newVolume("source", sized(5))); got.GetVolumeId() != source.GetVolumeId() {
		t.Errorf("a volume that is not meant: %v", got)
	}
	if diff := cmp.Diff(right, reply(""), protocmp.Transform()); diff != "" {
		t.Errorf("behaving again (-want +got):\n%s", diff)
	}
}
