package health

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// The numbers of VOLUME_CONDITION in CSI 1.3 to 1.12; CSI 1.13 took out the
// names.
const (
	ControllerVolumeCondition csi.ControllerServiceCapability_RPC_Type = 11
	NodeVolumeCondition       csi.NodeServiceCapability_RPC_Type       = 4
)

// The field numbers of the messages of CSI 1.3 to 1.12.
const (
	fieldCondition protowire.Number = 2 // in either VolumeStatus, and in NodeGetVolumeStatsResponse
	fieldAbnormal  protowire.Number = 1
	fieldMessage   protowire.Number = 2
)

// SetCondition puts a VolumeCondition into a message that had one before CSI
// 1.13: a VolumeStatus of ListVolumes or ControllerGetVolume, or the response of
// NodeGetVolumeStats. For a reader of 1.13 it is an unknown field.
func SetCondition(message proto.Message, conditions []state.Condition) {
	var condition []byte
	if len(conditions) > 0 {
		condition = protowire.AppendTag(condition, fieldAbnormal, protowire.VarintType)
		condition = protowire.AppendVarint(condition, protowire.EncodeBool(true))
	}
	condition = protowire.AppendTag(condition, fieldMessage, protowire.BytesType)
	condition = protowire.AppendString(condition, summary(conditions))

	unknown := protowire.AppendTag(nil, fieldCondition, protowire.BytesType)
	unknown = protowire.AppendBytes(unknown, condition)
	message.ProtoReflect().SetUnknown(unknown)
}
