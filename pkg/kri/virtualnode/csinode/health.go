package csinode

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Limits that the API sets on health conditions.
const (
	maxConditions   = 16
	maxReasonBytes  = 256
	maxMessageBytes = 1024
)

// VolumeHealth calls NodeGetVolumeHealth. No condition means healthy.
func (c *Client) VolumeHealth(ctx context.Context, handle, target, staging string) ([]v1.VolumeHealthCondition, error) {
	resp, err := call(ctx, c, "NodeGetVolumeHealth", c.node.NodeGetVolumeHealth,
		&csi.NodeGetVolumeHealthRequest{VolumeId: handle, VolumePublishPath: target, StagingTargetPath: staging})
	if err != nil {
		return nil, err
	}
	return volumeConditions(resp.GetVolumeHealth().GetHealthStatuses()), nil
}

// StorageHealth calls NodeGetStorageHealth. No condition means healthy.
func (c *Client) StorageHealth(ctx context.Context) ([]storagev1.StorageHealthCondition, error) {
	resp, err := call(ctx, c, "NodeGetStorageHealth", c.node.NodeGetStorageHealth, &csi.NodeGetStorageHealthRequest{})
	if err != nil {
		return nil, err
	}
	return storageConditions(resp.GetBackendHealth()), nil
}

// volumeConditions drops categories that this version does not know, as the CSI
// spec demands, and duplicates, which the API would refuse.
func volumeConditions(entries []*csi.VolumeHealth_VolumeHealthEntry) []v1.VolumeHealthCondition {
	kinds := map[csi.VolumeHealthErrorType]v1.VolumeHealthStatusType{
		csi.VolumeHealthErrorType_DEGRADED:     v1.VolumeHealthDegraded,
		csi.VolumeHealthErrorType_INACCESSIBLE: v1.VolumeHealthInaccessible,
		csi.VolumeHealthErrorType_DATA_LOSS:    v1.VolumeHealthDataLoss,
	}
	var out []v1.VolumeHealthCondition
	seen := map[string]bool{}
	for _, e := range entries {
		kind, known := kinds[e.GetStatus()]
		reason := clip(e.GetReason(), maxReasonBytes)
		if key := string(kind) + "/" + reason; known && reason != "" && !seen[key] && len(out) < maxConditions {
			seen[key] = true
			out = append(out, v1.VolumeHealthCondition{Status: kind, Reason: reason, Message: clip(e.GetMessage(), maxMessageBytes)})
		}
	}
	return out
}

func storageConditions(entries []*csi.NodeGetStorageHealthResponse_StorageBackendHealth) []storagev1.StorageHealthCondition {
	kinds := map[csi.StorageHealthErrorType]storagev1.StorageHealthStatusType{
		csi.StorageHealthErrorType_STORAGE_DEGRADED:    storagev1.StorageDegraded,
		csi.StorageHealthErrorType_STORAGE_UNREACHABLE: storagev1.StorageUnreachable,
	}
	var out []storagev1.StorageHealthCondition
	for _, e := range entries {
		kind, known := kinds[e.GetStatus()]
		reason := clip(e.GetReason(), maxReasonBytes)
		if known && reason != "" && len(out) < maxConditions {
			out = append(out, storagev1.StorageHealthCondition{
				Status: kind, Reason: reason, Message: clip(e.GetMessage(), maxMessageBytes),
				VolumeMode: volumeMode(e.GetVolumeCapability()),
			})
		}
	}
	return out
}

func volumeMode(capability *csi.VolumeCapability) *v1.PersistentVolumeMode {
	var mode v1.PersistentVolumeMode
	switch {
	case capability.GetBlock() != nil:
		mode = v1.PersistentVolumeBlock
	case capability.GetMount() != nil:
		mode = v1.PersistentVolumeFilesystem
	default:
		return nil
	}
	return &mode
}

// clip makes s valid UTF-8 of at most limit bytes.
func clip(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
