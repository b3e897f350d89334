package csiclient

import (
	"context"
	"errors"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const capPublished = csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES

func listed(id string, nodes ...string) *csi.ListVolumesResponse_Entry {
	return &csi.ListVolumesResponse_Entry{
		Volume: &csi.Volume{VolumeId: id}, Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodes},
	}
}

func wantPublished(t *testing.T, c *Client, want map[volume.Handle][]string, handles ...volume.Handle) {
	t.Helper()
	got, err := c.Published(testContext(t), handles)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Published differs (-want +got):\n%s", diff)
	}
}

// TestPublishedByList: all pages, entries of one volume merged, and what cannot
// be used left out and counted.
func TestPublishedByList(t *testing.T) {
	d := csiclienttest.Start(t, capList, capPublished, capGet)
	pages := map[string]*csi.ListVolumesResponse{
		"": {NextToken: "2", Entries: []*csi.ListVolumesResponse_Entry{
			listed("a", "n2", "n1"), listed("free"), {Volume: &csi.Volume{VolumeId: "no status"}}, {}, listed(""),
		}},
		"2": {Entries: []*csi.ListVolumesResponse_Entry{listed("a", "n3", "n1"), listed("b", "n1")}},
	}
	d.Handle("ListVolumes", func(_ context.Context, req any) (any, error) {
		return pages[req.(*csi.ListVolumesRequest).StartingToken], nil
	})
	wantPublished(t, connected(t, d), map[volume.Handle][]string{"a": {"n1", "n2", "n3"}, "free": nil, "b": {"n1"}}, "a")
}

// TestPublishedFailsWhole: a page that fails leaves no part that would make the
// other volumes look detached, and a list that starts again starts empty.
func TestPublishedFailsWhole(t *testing.T) {
	d := csiclienttest.Start(t, capList, capPublished)
	aborted := false
	d.Handle("ListVolumes", func(_ context.Context, req any) (any, error) {
		switch token := req.(*csi.ListVolumesRequest).StartingToken; {
		case token == "" && !aborted:
			return &csi.ListVolumesResponse{NextToken: "2", Entries: []*csi.ListVolumesResponse_Entry{listed("gone", "n1")}}, nil
		case token == "":
			return &csi.ListVolumesResponse{NextToken: "3", Entries: []*csi.ListVolumesResponse_Entry{listed("a", "n1")}}, nil
		case token == "2":
			aborted = true
			return nil, status.Error(codes.Aborted, "token is invalid")
		default:
			return nil, status.Error(codes.DeadlineExceeded, "slow")
		}
	})
	c := connected(t, d)
	got, err := c.Published(testContext(t), nil)
	if err == nil || got != nil {
		t.Fatalf("Published = %v, %v, want an error and nothing else", got, err)
	}
	d.Handle("ListVolumes", func(context.Context, any) (any, error) {
		return &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{listed("a", "n1")}}, nil
	})
	wantPublished(t, c, map[volume.Handle][]string{"a": {"n1"}})
}

// TestPublishedByVolume: where the driver does not list, the volumes of interest
// are asked for, and an unknown one is left out.
func TestPublishedByVolume(t *testing.T) {
	d := csiclienttest.Start(t, capGet, capPublished)
	d.Handle("ControllerGetVolume", func(_ context.Context, req any) (any, error) {
		id := req.(*csi.ControllerGetVolumeRequest).VolumeId
		reply := &csi.ControllerGetVolumeResponse{
			Volume: &csi.Volume{VolumeId: id}, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: []string{"n-" + id}},
		}
		switch id {
		case "unknown":
			return nil, status.Error(codes.NotFound, "no such volume")
		case "no status":
			reply.Status = nil
		case "another":
			reply.Volume.VolumeId = "other"
		}
		return reply, nil
	})
	c := connected(t, d)
	wantPublished(t, c, map[volume.Handle][]string{"a": {"n-a"}, "b": {"n-b"}}, "a", "b", "unknown", "no status", "another")
	wantPublished(t, c, map[volume.Handle][]string{})
}

func TestPublishedNeedsTheCapabilities(t *testing.T) {
	for _, caps := range [][]csi.ControllerServiceCapability_RPC_Type{nil, {capList, capGet}, {capPublished}} {
		c := connected(t, csiclienttest.Start(t, caps...))
		if _, err := c.Published(testContext(t), nil); !errors.Is(err, ErrNoPublished) || c.Capabilities().TellsPublished() {
			t.Errorf("With %v: %v, want %v", caps, err, ErrNoPublished)
		}
	}
}
