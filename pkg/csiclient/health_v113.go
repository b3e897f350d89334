package csiclient

import (
	"context"
	"errors"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// listHealth reads ControllerListVolumeHealth, which lists adverse volumes only.
func listHealth(ctx context.Context, c *Client, s *session, _ []volume.Handle, into *collection) error {
	get := func(ctx context.Context, token string, maxEntries int32) (string, error) {
		started := c.cfg.Clock.Now()
		resp, err := s.controller.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{
			MaxEntries: maxEntries, StartingToken: token,
		}, c.lenient())
		if err != nil {
			return "", err
		}
		for _, entry := range resp.GetEntries() {
			into.addListed(entry.GetVolumeId(), started, conditionsOf(entry))
		}
		return resp.GetNextToken(), nil
	}
	return supported(c.pages(ctx, get, into.reset), "LIST_VOLUME_HEALTH", "ControllerListVolumeHealth")
}

// getHealth reads ControllerGetVolumeHealth, volume by volume.
func getHealth(ctx context.Context, c *Client, s *session, handles []volume.Handle, into *collection) error {
	ask := func(ctx context.Context, h volume.Handle) error {
		started := c.cfg.Clock.Now()
		resp, err := s.controller.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: string(h)}, c.lenient())
		if err != nil {
			return err
		}
		// An empty reply of a careless driver would read as "healthy": only one
		// that names the volume counts.
		health := resp.GetVolumeHealth()
		if health == nil {
			return unusable(into, skipNoStatus)
		}
		if err := sameVolume(health.GetVolumeId(), h, into); err != nil {
			return err
		}
		into.add(health.GetVolumeId(), started, conditionsOf(health))
		return nil
	}
	return c.each(ctx, handles, ask, func(err error) error {
		return dialectProblem("GET_VOLUME_HEALTH", "ControllerGetVolumeHealth", err)
	})
}

// conditionsOf translates the entries of a volume; categories that are not
// known stay visible as such.
func conditionsOf(health *csi.VolumeHealth) []volume.Condition {
	var conditions []volume.Condition
	for _, entry := range health.GetHealthStatuses() {
		conditions = append(conditions, volume.Condition{
			Kind:    kindOfHealth(entry.GetStatus()),
			Reason:  oneLine(entry.GetReason(), maxReason),
			Message: oneLine(entry.GetMessage(), maxMessage),
		})
	}
	return conditions
}

func kindOfHealth(t csi.VolumeHealthErrorType) volume.ConditionKind {
	switch t {
	case csi.VolumeHealthErrorType_DEGRADED:
		return volume.Degraded
	case csi.VolumeHealthErrorType_INACCESSIBLE:
		return volume.Inaccessible
	case csi.VolumeHealthErrorType_DATA_LOSS:
		return volume.DataLoss
	default:
		return volume.UnknownCondition
	}
}

// supported turns UNIMPLEMENTED of a list into a dialect problem.
func supported(err error, capability, method string) error {
	var call *CallError
	if errors.As(err, &call) && call.Code == codes.Unimplemented {
		return dialectProblem(capability, method, err)
	}
	return err
}

// sameVolume checks that a reply speaks of the volume that was asked for.
func sameVolume(id string, asked volume.Handle, into *collection) error {
	switch {
	case id == "":
		return unusable(into, skipEmptyID)
	case volume.Handle(id) != asked:
		return unusable(into, skipOtherVolume)
	}
	return nil
}

func unusable(into *collection, reason string) error {
	into.skip(reason)
	return errNoAnswer
}
