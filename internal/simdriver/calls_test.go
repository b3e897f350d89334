package simdriver

import (
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

func TestRefusals(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume := r.volume("data")
	wantCode(t, r.publish("vol-unknown", node.id), "NotFound")
	wantCode(t, r.publish("../../etc", node.id), "NotFound")
	wantCode(t, r.publish(volume, "node-unknown"), "NotFound")
	wantCode(t, r.stage(node, "vol-unknown"), "NotFound")
	wantCode(t, r.stage(node, volume), "FailedPrecondition")
	wantCode(t, r.nodePublish(node, volume), "FailedPrecondition")
	checkUnmounted(t, r.dir)

	r.must(r.publish(volume, node.id))
	wantCode(t, r.nodePublish(node, volume), "FailedPrecondition") // not staged
	_, err := r.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: volume})
	wantCode(t, err, "FailedPrecondition")
	r.must(r.ctl.FailPath(t.Context(), volume, node.id))
	wantCode(t, r.stage(node, volume), "Unavailable")
	checkUnmounted(t, r.dir)

	block := &csi.VolumeCapability{AccessMode: oneNode().GetAccessMode(),
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
	_, err = r.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "block", VolumeCapabilities: []*csi.VolumeCapability{block}})
	wantCode(t, err, "InvalidArgument")
	_, err = r.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "mode", VolumeCapabilities: []*csi.VolumeCapability{mountOf(99)}})
	wantCode(t, err, "InvalidArgument")
}

// TestIdempotence: a repeated call changes nothing, and leaves no second line in
// the ledger.
func TestIdempotence(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume := r.volume("data")
	for range 3 {
		r.use(node, volume)
	}
	for range 3 {
		r.must(r.nodeUnpublish(node, volume))
		r.must(r.unstage(node, volume))
		r.must(r.unpublish(volume, node.id))
	}
	r.must(r.unpublish("vol-unknown", node.id))
	wantLedger(t, r, "controller-publish node-a", "node-stage node-a", "node-publish node-a",
		"node-unpublish node-a", "node-unstage node-a", "controller-unpublish node-a")
}

func TestSharedModes(t *testing.T) {
	r := newRig(t)
	r.node("node-a")
	r.node("node-b")
	volume := r.volume("data")
	publish := func(node string, mode csi.VolumeCapability_AccessMode_Mode) error {
		_, err := r.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: volume, NodeId: node, VolumeCapability: mountOf(mode)})
		return err
	}
	r.must(publish("node-a", csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER))
	r.must(publish("node-b", csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER))
	wantCode(t, publish("node-b", csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY), "AlreadyExists")
	got, err := r.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: volume})
	r.must(err)
	if diff := cmp.Diff([]string{"node-a", "node-b"}, got.GetStatus().GetPublishedNodeIds()); diff != "" {
		t.Error(diff)
	}
}

// TestListPages: each page is full, each volume is told once, and volumes that
// come and go between pages do no harm.
func TestListPages(t *testing.T) {
	r := newRig(t)
	var want []string
	for i := range 7 {
		want = append(want, r.volume(fmt.Sprintf("v%d", i)))
	}
	var got []string
	token := ""
	for page := 0; ; page++ {
		response, err := r.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		r.must(err)
		for _, entry := range response.GetEntries() {
			got = append(got, entry.GetVolume().GetVolumeId())
		}
		if page == 0 { // the last one told goes, and so does its place
			_, err := r.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: want[1]})
			r.must(err)
		}
		if token = response.GetNextToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	for _, token := range []string{"nonsense", "after.!!"} {
		_, err := r.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: token})
		wantCode(t, err, "Aborted")
	}
	_, err := r.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: -1})
	wantCode(t, err, "InvalidArgument")
}

func inaccessible(reason string) *csi.VolumeHealth_VolumeHealthEntry {
	return &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: reason}
}

func TestHealthV113(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	ill, lost, well := r.volume("a-ill"), r.volume("b-lost"), r.volume("c-well")
	r.use(node, lost)
	r.must(r.ctl.SetHealth(t.Context(), ill, "", simctl.Condition{Kind: "inaccessible", Reason: "ArrayDown"},
		simctl.Condition{Kind: "data-loss"}))
	r.must(r.ctl.FailPath(t.Context(), lost, node.id))

	list, err := r.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
	r.must(err)
	want := []*csi.VolumeHealth{{VolumeId: ill, HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
		inaccessible("ArrayDown"), {Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "DataLoss"}}}}
	if diff := cmp.Diff(want, list.GetEntries(), protocmp.Transform()); diff != "" {
		t.Errorf("the controller's list (-want +got):\n%s", diff)
	}
	one, err := r.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: well})
	r.must(err)
	if diff := cmp.Diff(&csi.VolumeHealth{VolumeId: well}, one.GetVolumeHealth(), protocmp.Transform()); diff != "" {
		t.Errorf("a healthy volume (-want +got):\n%s", diff)
	}
	r.wantNodeHealth(node, lost, inaccessible("PathLost"))
	r.wantNodeHealth(node, ill)
	r.must(r.ctl.HealPath(t.Context(), lost, node.id))
	r.wantNodeHealth(node, lost)
	r.must(r.unpublish(lost, node.id)) // still mounted: it sees a fence
	r.wantNodeHealth(node, lost, inaccessible("NotPublished"))
	r.must(r.ctl.SetHealth(t.Context(), ill, node.id, simctl.Condition{Kind: "inaccessible", Reason: "Slow"}))
	r.wantNodeHealth(node, ill, inaccessible("Slow"))

	r.must(r.ctl.SetStorageHealth(t.Context(), node.id, simctl.Condition{Kind: "unreachable"}))
	storage, err := node.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	r.must(err)
	if got := storage.GetBackendHealth(); len(got) != 1 || got[0].GetStatus() != csi.StorageHealthErrorType_STORAGE_UNREACHABLE {
		t.Errorf("storage health: %v", got)
	}
}

func (r *rig) wantNodeHealth(node *nodeRig, volume string, want ...*csi.VolumeHealth_VolumeHealthEntry) {
	r.t.Helper()
	got, err := node.NodeGetVolumeHealth(r.t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: volume})
	r.must(err)
	diff := cmp.Diff(want, got.GetVolumeHealth().GetHealthStatuses(), protocmp.Transform(),
		protocmp.IgnoreFields(&csi.VolumeHealth_VolumeHealthEntry{}, "message"))
	if diff != "" {
		r.t.Errorf("health of %s on %s (-want +got):\n%s", volume, node.id, diff)
	}
}

// TestHealthLegacy: the condition arrives as the field that a driver of CSI 1.12
// would have sent.
func TestHealthLegacy(t *testing.T) {
	r := newRig(t, func(cfg *Config) { cfg.Health = health.Legacy })
	node := r.node("node-a", "--health=legacy")
	volume := r.volume("data")
	path := r.use(node, volume)
	conditionOf := func() string {
		list, err := r.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		r.must(err)
		one, err := r.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: volume})
		r.must(err)
		listed := hex.EncodeToString(list.GetEntries()[0].GetStatus().ProtoReflect().GetUnknown())
		if got := hex.EncodeToString(one.GetStatus().ProtoReflect().GetUnknown()); got != listed {
			t.Errorf("one volume says %s, the list %s", got, listed)
		}
		return listed
	}
	healthy := "12" + "17" + "12" + "15" + hex.EncodeToString([]byte("The volume is healthy"))
	if got := conditionOf(); got != healthy {
		t.Errorf("healthy: %s, want %s", got, healthy)
	}
	r.must(r.ctl.SetHealth(t.Context(), volume, "", simctl.Condition{Kind: "abnormal", Reason: "Bad"}))
	if got, want := conditionOf(), "1207"+"0801"+"1203"+hex.EncodeToString([]byte("Bad")); got != want {
		t.Errorf("abnormal: %s, want %s", got, want)
	}
	r.must(r.ctl.SetHealth(t.Context(), volume, ""))
	r.must(r.ctl.FailPath(t.Context(), volume, node.id))
	if got := conditionOf(); got[4:8] != "0801" {
		t.Errorf("with a lost path: %s, want abnormal", got)
	}
	stats, err := node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: path})
	r.must(err)
	if got := hex.EncodeToString(stats.ProtoReflect().GetUnknown()); len(got) < 8 || got[:2] != "12" || got[4:8] != "0801" {
		t.Errorf("stats with a lost path: %s, want abnormal", got)
	}
	_, err = r.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
	wantCode(t, err, "Unimplemented")
	capabilities, err := r.ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	r.must(err)
	if last := capabilities.GetCapabilities()[len(capabilities.GetCapabilities())-1]; last.GetRpc().GetType() != 11 {
		t.Errorf("last capability: %v, want 11", last)
	}
}
