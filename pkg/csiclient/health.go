package csiclient

import (
	"context"
	"fmt"
	"slices"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Names of the health dialects, as HealthDialect gives them.
const (
	// DialectV113 are the health calls of CSI 1.13.
	DialectV113 = "v1.13"
	// DialectLegacy is the VolumeCondition of CSI 1.3 to 1.12.
	DialectLegacy = "legacy"
	// DialectNone is a driver that tells nothing.
	DialectNone = "none"
)

// dialect is one way of asking a driver for the health of volumes.
type dialect struct {
	name string
	// abnormalOnly is volume.Sweep.AbnormalOnly.
	abnormalOnly bool
	// read fills the collection; an error leaves it incomplete.
	read func(ctx context.Context, c *Client, s *session, handles []volume.Handle, into *collection) error
}

// dialect picks the way that costs least: a list over single calls, and the
// newer generation, which can tell what is wrong, over the older.
func (c Capabilities) dialect() dialect {
	switch {
	case c.Has(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH):
		return dialect{DialectV113, true, listHealth}
	case c.Has(csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH):
		return dialect{DialectV113, false, getHealth}
	case c.Has(VolumeCondition) && c.Has(csi.ControllerServiceCapability_RPC_LIST_VOLUMES):
		return dialect{DialectLegacy, false, listConditions}
	case c.Has(VolumeCondition) && c.Has(csi.ControllerServiceCapability_RPC_GET_VOLUME):
		return dialect{DialectLegacy, false, getConditions}
	default:
		return dialect{DialectNone, false, func(context.Context, *Client, *session, []volume.Handle, *collection) error {
			return ErrNoHealth
		}}
	}
}

// HealthDialect names the dialect that the driver speaks.
func (c *Client) HealthDialect() string { return c.Capabilities().dialect().name }

// Sweep asks the driver once for the health of volumes, in whichever dialect it
// speaks. handles are the volumes of interest. Where the driver lists, an empty
// handles means all that it lists; where each volume has to be asked for, only
// handles are.
//
// A list is read page by page with a deadline each; a list that repeats a token
// is broken off. A volume that gave no usable answer has no reading, and makes
// the sweep incomplete unless the driver does not know it. An error means that
// nothing at all was read; what cut a sweep short that has readings is logged.
func (c *Client) Sweep(ctx context.Context, handles []volume.Handle) (volume.Sweep, error) {
	s, err := c.acquire("Sweep")
	if err != nil {
		return volume.Sweep{}, err
	}
	defer s.release()

	d := s.caps.dialect()
	into := newCollection(handles, c.metrics.skipped)
	err = d.read(ctx, c, s, handles, into)
	sweep := into.result()
	sweep.AbnormalOnly = d.abnormalOnly
	sweep.Complete = err == nil
	if err == nil {
		return sweep, nil
	}
	err = fmt.Errorf("sweeping volume health (%s): %w", d.name, err)
	if len(sweep.Readings) == 0 {
		return sweep, err
	}
	klog.FromContext(ctx).Error(err, "Health sweep is incomplete", "readings", len(sweep.Readings), "skipped", sweep.Skipped)
	return sweep, nil
}

// dialectProblem tells of a driver that announces a call and does not have it.
func dialectProblem(capability, method string, err error) error {
	return &Problem{
		What: fmt.Sprintf("the driver announces %s but does not implement %s", capability, method),
		Do:   "this is a bug of the driver; no health can be read from it until it is fixed or restarted",
		Err:  err,
	}
}

// byHandle orders readings, so that the same replies give the same sweep.
func byHandle(readings []volume.Reading) {
	slices.SortFunc(readings, func(a, b volume.Reading) int {
		return strings.Compare(string(a.Key.Handle), string(b.Key.Handle))
	})
}
