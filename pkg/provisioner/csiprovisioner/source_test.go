package csiprovisioner

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
)

// copyOf is a snapshot that a volume is made of.
func copyOf(name string) *source.Source {
	return &source.Source{
		Ref: source.Ref{Kind: source.Snapshot, Namespace: "ns", Name: name, UID: "snap-uid"},
		Content: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "sid-" + name},
		}},
	}
}
