package calls

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newRecorder() *Recorder { return NewRecorder(testingclock.NewFakePassiveClock(begun)) }

// call has the recorder see one call that answers err.
func call(r *Recorder, method string, request any, err error) {
	_, _ = r.Intercept(context.Background(), request, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/" + method},
		func(context.Context, any) (any, error) { return nil, err })
}

// TestSecretsAreKeptNowhere: whatever the request carries, no value of a secret
// is in what is told, and the keys are.
func TestSecretsAreKeptNowhere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.StringMatching(`k[a-z]{3}`), 1, 4, rapid.ID).Draw(rt, "keys")
		secrets := map[string]string{}
		for i, key := range keys {
			secrets[key] = fmt.Sprintf("hunter%d", i)
		}
		r := newRecorder()
		for method, request := range map[string]any{
			"CreateVolume":              &csi.CreateVolumeRequest{Name: "v", Secrets: secrets},
			"DeleteVolume":              &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: secrets},
			"ControllerPublishVolume":   &csi.ControllerPublishVolumeRequest{VolumeId: "v", Secrets: secrets},
			"ControllerUnpublishVolume": &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", Secrets: secrets},
			"CreateSnapshot":            &csi.CreateSnapshotRequest{Name: "s", Secrets: secrets},
			"DeleteSnapshot":            &csi.DeleteSnapshotRequest{SnapshotId: "s", Secrets: secrets},
			"ControllerModifyVolume":    &csi.ControllerModifyVolumeRequest{VolumeId: "v", Secrets: secrets},
			"NodeStageVolume":           &csi.NodeStageVolumeRequest{VolumeId: "v", Secrets: secrets},
			"NodePublishVolume":         &csi.NodePublishVolumeRequest{VolumeId: "v", Secrets: secrets},
		} {
			call(r, method, request, nil)
			told, err := json.Marshal(r.Calls(method))
			if err != nil {
				rt.Fatal(err)
			}
			if strings.Contains(string(told), "hunter") {
				rt.Errorf("%s tells a secret: %s", method, told)
			}
			if got := r.Calls(method)[0].SecretKeys; len(got) != len(keys) {
				rt.Errorf("%s: keys %v, want %v", method, got, keys)
			}
		}
		if len(secrets) != len(keys) {
			rt.Errorf("the caller's request was changed: %v", secrets)
		}
	})
}

// TestDigest: equal requests have equal digests, whatever their secrets; any
// other difference shows.
func TestDigest(t *testing.T) {
	digest := func(request *csi.CreateVolumeRequest) string {
		r := newRecorder()
		call(r, "CreateVolume", request, nil)
		return r.Calls("")[0].Digest
	}
	make := func(change ...func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
		request := &csi.CreateVolumeRequest{Name: "v", Parameters: map[string]string{"a": "1", "b": "2", "c": "3"},
			AccessibilityRequirements: &csi.TopologyRequirement{Preferred: []*csi.Topology{
				{Segments: map[string]string{"zone": "a"}}, {Segments: map[string]string{"zone": "b"}}}}}
		for _, c := range change {
			c(request)
		}
		return request
	}
	same := digest(make())
	for range 20 { // maps have no order
		if digest(make()) != same {
			t.Fatal("equal requests differ")
		}
	}
	if digest(make(func(r *csi.CreateVolumeRequest) { r.Secrets = map[string]string{"a": "b"} })) != same {
		t.Error("a secret makes a difference")
	}
	for name, change := range map[string]func(*csi.CreateVolumeRequest){
		"name":      func(r *csi.CreateVolumeRequest) { r.Name = "w" },
		"parameter": func(r *csi.CreateVolumeRequest) { r.Parameters["a"] = "2" },
		"order": func(r *csi.CreateVolumeRequest) {
			p := r.AccessibilityRequirements.Preferred
			p[0], p[1] = p[1], p[0]
		},
	} {
		if digest(make(change)) == same {
			t.Errorf("another %s makes no difference", name)
		}
	}
}

func TestWhatIsTold(t *testing.T) {
	r := newRecorder()
	call(r, "Probe", &csi.ProbeRequest{}, nil)
	call(r, "ListVolumes", &csi.ListVolumesRequest{}, nil)
	call(r, "ListSnapshots", &csi.ListSnapshotsRequest{}, nil)
	call(r, "NodeGetInfo", "no message", nil)
	call(r, "CreateSnapshot", &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v"}, nil)
	call(r, "DeleteSnapshot", &csi.DeleteSnapshotRequest{SnapshotId: "s"}, status.Error(codes.Aborted, "busy"))
	call(r, "ControllerPublishVolume", &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n"}, nil)
	if diff := cmp.Diff(Counts{"Probe": 1, "ListVolumes": 1, "ListSnapshots": 1, "NodeGetInfo": 1, "CreateSnapshot": 1,
		"DeleteSnapshot": 1, "ControllerPublishVolume": 1}, r.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	got := r.Calls("")
	for i := range got {
		got[i].Digest, got[i].Request = "", nil
	}
	want := []Call{
		{Method: "CreateSnapshot", Begun: begun, Name: "s", Volume: "v", Code: "OK"},
		{Method: "DeleteSnapshot", Begun: begun, Snapshot: "s", Code: "Aborted"},
		{Method: "ControllerPublishVolume", Begun: begun, Volume: "v", Node: "n", Code: "OK"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestTheOldestAreForgotten: memory is bounded, counts are not, and an answer to
// a call that is forgotten goes nowhere.
func TestTheOldestAreForgotten(t *testing.T) {
	r := newRecorder()
	number, _ := r.begin("CreateVolume", &csi.CreateVolumeRequest{Name: "first"})
	for i := range kept {
		call(r, "DeleteVolume", &csi.DeleteVolumeRequest{VolumeId: fmt.Sprint(i)}, nil)
	}
	r.end(number, "Internal")
	all := r.Calls("")
	if len(all) > kept || r.Counts()["DeleteVolume"] != kept || all[len(all)-1].Volume != fmt.Sprint(kept-1) {
		t.Errorf("%d calls, %v, the last %+v", len(all), r.Counts(), all[len(all)-1])
	}
	for _, call := range all {
		if call.Code != "OK" {
			t.Fatalf("%+v has the code of another call", call)
		}
	}
}
