package csiclient

import (
	"context"
	"errors"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Field numbers of CSI 1.3 to 1.12, where CSI 1.13 has "reserved 2":
//
//	message VolumeStatus    { ... VolumeCondition volume_condition = 2; }
//	message VolumeCondition { bool abnormal = 1; string message = 2; }
const (
	fieldVolumeCondition = protowire.Number(2)
	fieldAbnormal        = protowire.Number(1)
	fieldMessage         = protowire.Number(2)
)

var errUndecodable = errors.New("the volume condition cannot be decoded")

// listConditions reads ListVolumes with the conditions of CSI 1.3 to 1.12.
func listConditions(ctx context.Context, c *Client, s *session, _ []volume.Handle, into *collection) error {
	get := func(ctx context.Context, token string, maxEntries int32) (string, error) {
		started := c.cfg.Clock.Now()
		resp, err := s.controller.ListVolumes(ctx, &csi.ListVolumesRequest{
			MaxEntries: maxEntries, StartingToken: token,
		}, c.lenient())
		if err != nil {
			return "", err
		}
		for _, entry := range resp.GetEntries() {
			c.addListedCondition(entry, func(conditions []volume.Condition) {
				into.addListed(entry.GetVolume().GetVolumeId(), started, conditions)
			}, into)
		}
		return resp.GetNextToken(), nil
	}
	return supported(c.pages(ctx, get, into.reset), "LIST_VOLUMES", "ListVolumes")
}

func (c *Client) addListedCondition(entry *csi.ListVolumesResponse_Entry, add func([]volume.Condition), into *collection) {
	switch {
	case entry.GetVolume() == nil:
		into.skip(skipNoVolume)
	case entry.GetStatus() == nil:
		into.skip(skipNoStatus)
	default:
		conditions, err := c.legacyConditions(entry.GetStatus())
		if err != nil {
			into.skip(skipNoCondition)
			return
		}
		add(conditions)
	}
}

// getConditions reads ControllerGetVolume, volume by volume.
func getConditions(ctx context.Context, c *Client, s *session, handles []volume.Handle, into *collection) error {
	ask := func(ctx context.Context, h volume.Handle) error {
		started := c.cfg.Clock.Now()
		resp, err := s.controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: string(h)}, c.lenient())
		if err != nil {
			return err
		}
		switch {
		case resp.GetVolume() == nil:
			return unusable(into, skipNoVolume)
		case resp.GetStatus() == nil:
			return unusable(into, skipNoStatus)
		}
		if err := sameVolume(resp.GetVolume().GetVolumeId(), h, into); err != nil {
			return err
		}
		conditions, err := c.legacyConditions(resp.GetStatus())
		if err != nil {
			return unusable(into, skipNoCondition)
		}
		into.add(string(h), started, conditions)
		return nil
	}
	return c.each(ctx, handles, ask, func(err error) error {
		return dialectProblem("GET_VOLUME", "ControllerGetVolume", err)
	})
}

// legacyConditions reads the condition out of what CSI 1.13 does not know of a
// status: empty for "not abnormal", an error where there is none to read.
func (c *Client) legacyConditions(status proto.Message) ([]volume.Condition, error) {
	cond, found, err := decodeStatus(status.ProtoReflect().GetUnknown())
	switch {
	case err != nil:
		c.metrics.malformed.WithLabelValues(malformedCondition).Inc()
		return nil, err
	case !found:
		return nil, errNoAnswer
	case !cond.abnormal:
		return nil, nil
	}
	return []volume.Condition{{Kind: volume.Abnormal, Message: oneLine(cond.message, maxMessage)}}, nil
}

// legacyCondition is the message VolumeCondition.
type legacyCondition struct {
	abnormal bool
	message  string
}

// decodeStatus finds the condition among the unknown fields of a status. As
// everywhere in protobuf, a field that comes twice is merged.
func decodeStatus(b []byte) (cond legacyCondition, found bool, err error) {
	err = eachField(b, func(num protowire.Number, typ protowire.Type, value []byte) error {
		if num != fieldVolumeCondition || typ != protowire.BytesType {
			return nil
		}
		found = true
		inner, _ := protowire.ConsumeBytes(value)
		return decodeCondition(inner, &cond)
	})
	return cond, found, err
}

func decodeCondition(b []byte, cond *legacyCondition) error {
	return eachField(b, func(num protowire.Number, typ protowire.Type, value []byte) error {
		switch {
		case num == fieldAbnormal && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			cond.abnormal = protowire.DecodeBool(v)
		case num == fieldMessage && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			cond.message = string(v)
		}
		return nil
	})
}

// eachField calls do for every field of an encoded message with its value as it
// is encoded, length prefix included, and known to be whole.
func eachField(b []byte, do func(protowire.Number, protowire.Type, []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errUndecodable
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return errUndecodable
		}
		if err := do(num, typ, b[n:n+size]); err != nil {
			return err
		}
		b = b[n+size:]
	}
	return nil
}
