// Package health puts what is wrong with volumes into the words of either
// generation of the CSI specification.
package health

import (
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// Dialect is how a driver tells of the health of volumes.
type Dialect string

const (
	// None: not at all.
	None Dialect = "none"
	// Legacy: VolumeCondition of CSI 1.3 to 1.12.
	Legacy Dialect = "legacy"
	// V113: the health calls of CSI 1.13.
	V113 Dialect = "v1.13"
)

// Parse reads the value of the flag.
func Parse(value string) (Dialect, error) {
	switch d := Dialect(value); d {
	case None, Legacy, V113:
		return d, nil
	default:
		return "", fmt.Errorf("health %q is none of none, legacy, v1.13", value)
	}
}

// PathLost is what a node tells of a volume whose path is made to fail.
func PathLost() state.Condition {
	return state.Condition{Kind: state.Inaccessible, Reason: "PathLost",
		Message: "The path from this node to the volume is lost"}
}

// NotPublished is what a node tells of a volume that it has mounted, and that
// has been taken from it meanwhile.
func NotPublished() state.Condition {
	return state.Condition{Kind: state.Inaccessible, Reason: "NotPublished",
		Message: "The volume is mounted here but no longer published to this node"}
}

// Volume is the health of a volume in the words of CSI 1.13.
func Volume(id string, conditions []state.Condition) *csi.VolumeHealth {
	health := &csi.VolumeHealth{VolumeId: id}
	for _, c := range conditions {
		health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: volumeStatus(c.Kind), Reason: c.Reason, Message: c.Message,
		})
	}
	return health
}

func volumeStatus(kind string) csi.VolumeHealthErrorType {
	switch kind {
	case state.Inaccessible:
		return csi.VolumeHealthErrorType_INACCESSIBLE
	case state.DataLoss:
		return csi.VolumeHealthErrorType_DATA_LOSS
	default:
		return csi.VolumeHealthErrorType_DEGRADED
	}
}

// Storage is the health of the storage of a node in the words of CSI 1.13.
func Storage(conditions []state.Condition) *csi.NodeGetStorageHealthResponse {
	response := &csi.NodeGetStorageHealthResponse{}
	for _, c := range conditions {
		status := csi.StorageHealthErrorType_STORAGE_DEGRADED
		if c.Kind == state.Unreachable {
			status = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
		}
		response.BackendHealth = append(response.BackendHealth, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: status, Reason: c.Reason, Message: c.Message,
		})
	}
	return response
}

// summary is what the legacy message says; it has room for one text.
func summary(conditions []state.Condition) string {
	texts := make([]string, 0, len(conditions))
	for _, c := range conditions {
		if c.Message != "" {
			texts = append(texts, c.Reason+": "+c.Message)
		} else {
			texts = append(texts, c.Reason)
		}
	}
	if len(texts) == 0 {
		return "The volume is healthy"
	}
	return strings.Join(texts, "; ")
}
