package csiclient

import (
	"context"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestNodeInfo(t *testing.T) {
	d := csiclienttest.Start(t)
	c := connected(t, d)
	for _, tc := range []struct {
		name  string
		reply *csi.NodeGetInfoResponse
		want  NodeInfo
	}{
		{"a place", &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a", "rack": "7"}}},
			NodeInfo{ID: "n", Segments: map[string]string{"zone": "a", "rack": "7"}}},
		{"no topology", &csi.NodeGetInfoResponse{NodeId: "n"}, NodeInfo{ID: "n"}},
		{"an empty topology", &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csi.Topology{}}, NodeInfo{ID: "n"}},
		{"nothing at all", nil, NodeInfo{}},
	} {
		d.Handle("NodeGetInfo", func(context.Context, any) (any, error) { return tc.reply, nil })
		got, err := c.NodeInfo(testContext(t))
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tc.name, err, diff)
		}
	}
	if n := len(d.Requests("NodeGetInfo")); n != 4 {
		t.Errorf("%d calls, want 4: none is kept for later", n)
	}
}

// TestNodeInfoFails: what is worth asking again, and what is not, as of a socket
// that has no Node service.
func TestNodeInfoFails(t *testing.T) {
	d := csiclienttest.Start(t)
	c := connected(t, d)
	_, err := c.NodeInfo(testContext(t))
	wantCallError(t, err, codes.Unimplemented, volume.OutcomeFinal)
	d.Handle("NodeGetInfo", func(context.Context, any) (any, error) { return nil, status.Error(codes.FailedPrecondition, "not yet") })
	_, err = c.NodeInfo(testContext(t))
	wantCallError(t, err, codes.FailedPrecondition, volume.OutcomeRetry)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = c.NodeInfo(testContext(t))
	if call := wantCallError(t, err, codes.Unavailable, volume.OutcomeRetry); call.Sent {
		t.Error("a call after Close is said to be sent")
	}
}
