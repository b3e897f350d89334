package csiclient

import (
	"bytes"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// TestRepairMakesAnyListReadable: whichever bytes stand in its strings, map
// keys and values included, and the rest is what it was.
func TestRepairMakesAnyListReadable(t *testing.T) {
	desc := (&csi.ListVolumesResponse{}).ProtoReflect().Descriptor()
	rapid.Check(t, func(t *rapid.T) {
		// Marked text is put in place of plain text of the same length, since
		// the encoder refuses to write it.
		bad := rapid.SliceOfN(rapid.Byte(), 5, 5).Draw(t, "bad")
		const mark = "MARKS"
		msg := &csi.ListVolumesResponse{NextToken: "next"}
		for range rapid.IntRange(0, 5).Draw(t, "entries") {
			msg.Entries = append(msg.Entries, &csi.ListVolumesResponse_Entry{
				Volume: &csi.Volume{
					CapacityBytes: rapid.Int64().Draw(t, "capacity"), VolumeId: "v-" + mark,
					VolumeContext: map[string]string{mark: mark, "plain": "text"},
				},
				Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{mark, "n"}},
			})
		}
		good, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(repairUTF8(good, desc), good) {
			t.Fatal("A valid message was changed")
		}
		var got csi.ListVolumesResponse
		if err := proto.Unmarshal(repairUTF8(bytes.ReplaceAll(good, []byte(mark), bad), desc), &got); err != nil {
			t.Fatalf("The repaired message: %v", err)
		}
		if got.GetNextToken() != "next" || len(got.GetEntries()) != len(msg.GetEntries()) {
			t.Fatalf("The repaired message is %v, want the rest as it was", &got)
		}
		want := "v-" + strings.ToValidUTF8(string(bad), "\uFFFD")
		for i, e := range got.GetEntries() {
			if e.GetVolume().GetVolumeId() != want || e.GetVolume().GetCapacityBytes() != msg.Entries[i].Volume.CapacityBytes ||
				e.GetVolume().GetVolumeContext()["plain"] != "text" {
				t.Fatalf("Entry %d is %v", i, e)
			}
		}
	})
}

func TestRepairLeavesGarbageAlone(t *testing.T) {
	desc := (&csi.ListVolumesResponse{}).ProtoReflect().Descriptor()
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "bytes")
		once := repairUTF8(b, desc)
		if !bytes.Equal(repairUTF8(once, desc), once) {
			t.Fatalf("%x: repairing twice is not repairing once", b)
		}
	})
}
