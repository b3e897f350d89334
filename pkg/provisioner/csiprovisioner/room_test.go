package csiprovisioner

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// roomy is a driver that tells of room.
type roomy struct {
	reply *csi.GetCapacityResponse
	err   error
	asked *csi.GetCapacityRequest
}

func (r *roomy) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	r.asked = req
	return r.reply, r.err
}

func TestHasRoom(t *testing.T) {
	p := &Provisioner{cfg: Config{
		Timeout: DefaultTimeout, DefaultFSType: "xfs", Capabilities: func() Capabilities { return Capabilities{} },
	}}
	claim := &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("10")}},
	}}
	class := &storagev1.StorageClass{
		Parameters:   map[string]string{"tier": "fast", "csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "n"},
		MountOptions: []string{"noatime"},
	}
	at := &csi.Topology{Segments: map[string]string{"node": "n1"}}
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		reply *csi.GetCapacityResponse
		err   error
		want  bool
	}{
		{"just enough", &csi.GetCapacityResponse{AvailableCapacity: 10}, nil, true},
		{"too little", &csi.GetCapacityResponse{AvailableCapacity: 9}, nil, false},
		{"none", nil, nil, false},
		{"enough, in pieces", &csi.GetCapacityResponse{AvailableCapacity: 100, MaximumVolumeSize: wrapperspb.Int64(9)}, nil, false},
		{"the largest volume counts", &csi.GetCapacityResponse{AvailableCapacity: 5, MaximumVolumeSize: wrapperspb.Int64(10)}, nil, true},
		{"an error", nil, broken, false},
	} {
		driver := &roomy{reply: c.reply, err: c.err}
		got, err := p.HasRoom(t.Context(), driver, claim, class, at)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, got, err, c.want, c.err)
		}
		want := &csi.GetCapacityRequest{
			Parameters: map[string]string{"tier": "fast"}, AccessibleTopology: at,
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}},
			}},
		}
		if diff := cmp.Diff(want, driver.asked, protocmp.Transform()); diff != "" {
			t.Errorf("%s: the request (-want +got):\n%s", c.name, diff)
		}
	}
	// What no driver could make is an error, and no driver is asked.
	driver := &roomy{}
	wrong := class.DeepCopy()
	wrong.Parameters["csi.storage.k8s.io/nonsense"] = "x"
	if _, err := p.HasRoom(t.Context(), driver, claim, wrong, at); err == nil || !strings.Contains(err.Error(), "nonsense") || driver.asked != nil {
		t.Errorf("a class that cannot be used: %v, the driver was asked %v", err, driver.asked)
	}
}
