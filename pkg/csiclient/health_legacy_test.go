package csiclient

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// raw reads bytes written as hex, with text in single quotes between.
func raw(t *testing.T, parts ...string) csiclienttest.Raw {
	t.Helper()
	var out []byte
	for _, part := range parts {
		if text, ok := strings.CutPrefix(part, "'"); ok {
			out = append(out, text...)
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(part, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

// bytesOf112 is ListVolumesResponse as a driver built with CSI 1.12 encodes it,
// field by field:
//
//	entries: {volume: {capacity_bytes: 4096, volume_id: "vol-a"},
//	          status: {published_node_ids: "n1", volume_condition: {abnormal: true, message: "disk failed"}}}
//	entries: {volume: {volume_id: "vol-b"}, status: {volume_condition: {abnormal: false, message: "ok"}}}
//	entries: {volume: {volume_id: "vol-c"}, status: {volume_condition: {}}}
//	entries: {volume: {volume_id: "vol-d"}, status: {published_node_ids: "n1"}}
//	entries: {volume: {volume_id: "vol-e"}}
//	entries: {status: {volume_condition: {abnormal: true}}}
func bytesOf112(t *testing.T) csiclienttest.Raw {
	return raw(t,
		"0a 23", "0a 0a 08 80 20 12 05", "'vol-a", "12 15 0a 02", "'n1", "12 0f 08 01 12 0b", "'disk failed",
		"0a 11", "0a 07 12 05", "'vol-b", "12 06 12 04 12 02", "'ok",
		"0a 0d", "0a 07 12 05", "'vol-c", "12 02 12 00",
		"0a 0f", "0a 07 12 05", "'vol-d", "12 04 0a 02", "'n1",
		"0a 09", "0a 07 12 05", "'vol-e",
		"0a 06", "12 04 12 02 08 01",
	)
}

func TestListOfA112Driver(t *testing.T) {
	d := csiclienttest.Start(t, VolumeCondition, capList)
	r := registry()
	c := connected(t, d, func(cfg *Config) { cfg.Registry = r })
	d.Handle("ListVolumes", func(context.Context, any) (any, error) { return bytesOf112(t), nil })
	got, err := sweep(t, c)
	if err != nil {
		t.Fatal(err)
	}
	wantSweep(t, got, volume.Sweep{Complete: true, Skipped: 3, Readings: []volume.Reading{
		reading("vol-a", volume.Condition{Kind: volume.Abnormal, Message: "disk failed"}),
		reading("vol-b"),
		reading("vol-c"),
	}})
	for _, reason := range []string{skipNoCondition, skipNoStatus, skipNoVolume} {
		if n := counter(t, r, "ha_sidecar_csi_skipped_entries_total", map[string]string{"reason": reason}); n != 1 {
			t.Errorf("Entries skipped for %s = %v, want 1", reason, n)
		}
	}
}

// TestInvalidUTF8InAList: one garbled message does not hide the other volumes,
// and a garbled identifier is nobody's.
func TestInvalidUTF8InAList(t *testing.T) {
	d := csiclienttest.Start(t, VolumeCondition, capList)
	r := registry()
	c := connected(t, d, func(cfg *Config) { cfg.Registry = r })
	d.Handle("ListVolumes", func(context.Context, any) (any, error) {
		return raw(t,
			"0a 10", "0a 04 12 02", "'v1", "12 08 12 06 08 01 12 02", "ff fe", // a bad message: unknown to 1.13, so not even repaired
			"0a 0e", "0a 04 12 02", "'v2", "12 06 0a 02 c3 28 12 00", // a bad node ID
			"0a 0a", "0a 04 12 02 ff fe", "12 02 12 00", // a bad volume ID
		), nil
	})
	got, err := sweep(t, c)
	if err != nil {
		t.Fatal(err)
	}
	wantSweep(t, got, volume.Sweep{Complete: true, Skipped: 1, Readings: []volume.Reading{
		reading("v1", volume.Condition{Kind: volume.Abnormal, Message: "\uFFFD"}),
		reading("v2"),
	}})
	if n := counter(t, r, "ha_sidecar_csi_malformed_replies_total", map[string]string{"kind": malformedUTF8}); n != 1 {
		t.Errorf("Repaired replies counted = %v, want 1", n)
	}
}

func TestGetOfA112Driver(t *testing.T) {
	d := csiclienttest.Start(t, VolumeCondition, capGet)
	c := connected(t, d)
	d.Handle("ControllerGetVolume", func(_ context.Context, req any) (any, error) {
		switch id := req.(*csi.ControllerGetVolumeRequest).GetVolumeId(); id {
		case "bad":
			return raw(t, "0a 05 12 03", "'bad", "12 09 12 07 08 01 12 03", "'ill"), nil
		case "fine":
			return raw(t, "0a 06 12 04", "'fine", "12 02 12 00"), nil
		case "silent":
			return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: id}, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
		case "bare":
			return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: id}}, nil
		case "other":
			return raw(t, "0a 06 12 04", "'fine", "12 02 12 00"), nil
		case "nothing":
			return (*csi.ControllerGetVolumeResponse)(nil), nil
		default:
			return nil, status.Error(codes.NotFound, id)
		}
	})
	got, err := sweep(t, c, "bad", "fine", "gone")
	if err != nil {
		t.Fatal(err)
	}
	wantSweep(t, got, volume.Sweep{Complete: true, Readings: []volume.Reading{
		reading("bad", volume.Condition{Kind: volume.Abnormal, Message: "ill"}), reading("fine"),
	}})
	got, err = sweep(t, c, "fine", "silent", "bare", "other", "nothing")
	if err != nil {
		t.Fatal(err)
	}
	wantSweep(t, got, volume.Sweep{Skipped: 4, Readings: []volume.Reading{reading("fine")}})
}

func TestDecodeStatus(t *testing.T) {
	for _, tc := range []struct {
		name  string
		in    csiclienttest.Raw
		want  legacyCondition
		found bool
		err   error
	}{
		{"nothing", nil, legacyCondition{}, false, nil},
		{"merged", raw(t, "12 02 08 01", "12 03 12 01", "'x"), legacyCondition{true, "x"}, true, nil},
		{"set back", raw(t, "12 02 08 01", "12 02 08 00"), legacyCondition{}, true, nil},
		{"other fields around", raw(t, "18 07", "12 02 08 01", "22 01 00"), legacyCondition{abnormal: true}, true, nil},
		{"newer fields within", raw(t, "12 06 08 01 18 05 20 01"), legacyCondition{abnormal: true}, true, nil},
		{"wrong wire type", raw(t, "10 01"), legacyCondition{}, false, nil},
		{"wrong types within", raw(t, "12 05 0a 01 00 10 01"), legacyCondition{}, true, nil},
		{"cut off", raw(t, "12 05 08"), legacyCondition{}, false, errUndecodable},
		{"bad tag", raw(t, "ff"), legacyCondition{}, false, errUndecodable},
		{"bad inside", raw(t, "12 01 08"), legacyCondition{}, true, errUndecodable},
	} {
		got, found, err := decodeStatus(tc.in)
		if got != tc.want || found != tc.found || !errors.Is(err, tc.err) {
			t.Errorf("%s: decodeStatus = %+v, %t, %v, want %+v, %t, %v", tc.name, got, found, err, tc.want, tc.found, tc.err)
		}
	}
}

func TestDecodeStatusNeverPanics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "bytes")
		if cond, found, err := decodeStatus(b); !found && err == nil && cond != (legacyCondition{}) {
			t.Fatalf("%x: a condition %+v out of nothing", b, cond)
		}
	})
}
