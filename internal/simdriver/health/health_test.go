package health

import (
	"encoding/hex"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

func TestParse(t *testing.T) {
	for value, ok := range map[string]bool{"none": true, "legacy": true, "v1.13": true, "": false, "V1.13": false} {
		if got, err := Parse(value); (err == nil) != ok || (ok && string(got) != value) {
			t.Errorf("%q: %q, %v", value, got, err)
		}
	}
}

// TestLegacyBytes: what a driver that was built with the messages of CSI 1.12
// puts on the wire, byte by byte.
func TestLegacyBytes(t *testing.T) {
	status := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"n1"}}
	SetCondition(status, []state.Condition{{Kind: state.Abnormal, Reason: "Bad", Message: "x"}, {Kind: state.Degraded, Reason: "Slow"}})
	encoded, err := proto.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	text := "Bad: x; Slow"
	want := "0a02" + hex.EncodeToString([]byte("n1")) + // published_node_ids = 1
		"1210" + // volume_condition = 2, 16 bytes
		"0801" + // abnormal = 1: true
		"120c" + hex.EncodeToString([]byte(text)) // message = 2
	if got := hex.EncodeToString(encoded); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// It survives a client that does not know the field.
	var back csi.ListVolumesResponse_VolumeStatus
	if err := proto.Unmarshal(encoded, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.ProtoReflect().GetUnknown()) != 18 {
		t.Errorf("the unknown field has %d bytes, want 18", len(back.ProtoReflect().GetUnknown()))
	}
}

func TestV113(t *testing.T) {
	got := Volume("vol-a", []state.Condition{{Kind: state.Degraded, Reason: "A"}, {Kind: state.Inaccessible, Reason: "B"},
		{Kind: state.DataLoss, Reason: "C"}, {Kind: state.Abnormal, Reason: "D", Message: "m"}})
	want := []csi.VolumeHealthErrorType{csi.VolumeHealthErrorType_DEGRADED, csi.VolumeHealthErrorType_INACCESSIBLE,
		csi.VolumeHealthErrorType_DATA_LOSS, csi.VolumeHealthErrorType_DEGRADED}
	for i, status := range got.GetHealthStatuses() {
		if status.GetStatus() != want[i] {
			t.Errorf("%s is %s, want %s", status.GetReason(), status.GetStatus(), want[i])
		}
	}
	storage := Storage([]state.Condition{{Kind: state.Unreachable, Reason: "A"}, {Kind: state.Degraded, Reason: "B"}})
	if storage.GetBackendHealth()[0].GetStatus() != csi.StorageHealthErrorType_STORAGE_UNREACHABLE ||
		storage.GetBackendHealth()[1].GetStatus() != csi.StorageHealthErrorType_STORAGE_DEGRADED {
		t.Errorf("storage: %v", storage)
	}
}
