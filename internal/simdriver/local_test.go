package simdriver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestControllerOfOneNode: a node's own controller service makes, measures and
// deletes what is there, and knows of nothing else.
func TestControllerOfOneNode(t *testing.T) {
	r := newRig(t, func(cfg *Config) { cfg.Topology = true })
	local := func(id, z string) csi.ControllerClient {
		n := r.nodeHere(id, func(cfg *Config) {
			cfg.NodeTopology, cfg.LocalController, cfg.Capacity = zone(z).GetSegments(), true, 100
		})
		return csi.NewControllerClient(n.conn)
	}
	a, b := local("node-a", "a"), local("node-b", "b")
	for name, request := range map[string]*csi.CreateVolumeRequest{
		"asked for here":     newVolume("v1", sized(10), within([]*csi.Topology{zone("a")})),
		"here or elsewhere":  newVolume("v2", sized(10), within([]*csi.Topology{zone("b"), zone("a")}, zone("b"))),
		"asked for anywhere": newVolume("v3", sized(10)),
	} {
		made, err := a.CreateVolume(t.Context(), request)
		r.must(err)
		if diff := cmp.Diff([]*csi.Topology{zone("a")}, made.GetVolume().GetAccessibleTopology(), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	_, err := a.CreateVolume(t.Context(), newVolume("v4", within([]*csi.Topology{zone("b")})))
	wantCode(t, err, "ResourceExhausted")
	for _, c := range []struct {
		of   csi.ControllerClient
		at   *csi.Topology
		want int64
	}{{a, zone("a"), 70}, {a, nil, 70}, {a, zone("b"), 0}, {b, zone("b"), 100}} {
		room, err := c.of.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: c.at})
		if err != nil || room.GetAvailableCapacity() != c.want {
			t.Errorf("room at %v: %v, %v; want %d", c.at, room, err, c.want)
		}
	}
	there := func() int {
		list, err := r.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		r.must(err)
		return len(list.GetEntries())
	}
	// As for a volume that does not exist.
	_, err = b.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "vol-v1"})
	if r.must(err); there() != 3 {
		t.Errorf("%d volumes are left after the other node was asked to delete one", there())
	}
	_, err = a.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "vol-v1"})
	if r.must(err); there() != 2 {
		t.Errorf("%d volumes are left", there())
	}
}
