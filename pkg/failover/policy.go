package failover

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// Mode says how far decisions go.
type Mode string

const (
	// ModeOff: nothing is decided.
	ModeOff Mode = "off"
	// ModeObserve: everything is decided and shown, nothing is moved.
	ModeObserve Mode = "observe"
	// ModeEnforce: moves are fed into the failing-PV channel.
	ModeEnforce Mode = "enforce"
)

// Fence says what revokes a node's access to a volume.
type Fence string

const (
	// FenceNone: nothing does, so pods can only be asked to go.
	FenceNone Fence = "none"
	// FenceUnpublish: the operator declares that the driver's
	// ControllerUnpublishVolume does (CSI itself does not promise it).
	FenceUnpublish Fence = "unpublish"
	// FenceNetwork: a NetworkFence cuts off the whole node, so that a failed
	// node's closure is every pod there that uses the driver.
	FenceNetwork Fence = "network"
)

// Backoff slows down a workload that fails over again and again.
type Backoff struct {
	// Free is how many moves in a row are not delayed.
	Free int
	// Initial is the delay after the last free move; it doubles with each
	// further one.
	Initial time.Duration
	// Max bounds the delay. A workload that was not moved for twice as long
	// starts anew.
	Max time.Duration
}

// Policy is what the operator has asked for. All of it is data for Decide.
type Policy struct {
	// DriverName is the CSI driver's name.
	DriverName string
	Mode       Mode
	Fence      Fence
	// MaxFailingNodes is the breaker's limit: a percentage of the nodes that
	// carry the driver, or a number of them. At least one node may fail, never
	// half or more (one of two may). "100%" switches the breaker off.
	MaxFailingNodes intstr.IntOrString
	// StormCooldown is how long the failing nodes must be within the limit
	// before an open breaker closes.
	StormCooldown time.Duration
	// StormWindow is how long an unconfirmed verdict on a further node counts as
	// a sign of a storm. It must not be shorter than a failure takes to be
	// confirmed, and it ends, since a stored status of a kubelet that died is
	// never confirmed and must not hold up the others for ever.
	StormWindow time.Duration
	// HoldOff is how long nothing moves after Run starts, which is after every
	// start of the process and every change of leader.
	HoldOff time.Duration
	// MovesPerMinute is how many pods may be moved in any 60 seconds, by this
	// leader and the ones before it. A closure larger than that goes alone.
	MovesPerMinute int
	Backoff        Backoff
}

// DefaultPolicy returns the documented defaults for a driver: observe, no
// fence.
func DefaultPolicy(driver string) Policy {
	return Policy{
		DriverName:      driver,
		Mode:            ModeObserve,
		Fence:           FenceNone,
		MaxFailingNodes: intstr.FromString("20%"),
		StormCooldown:   5 * time.Minute,
		StormWindow:     2 * time.Minute,
		HoldOff:         15 * time.Second,
		MovesPerMinute:  120,
		Backoff:         Backoff{Free: 3, Initial: time.Minute, Max: 30 * time.Minute},
	}
}

// Validate reports every value that cannot be used, each with its flag.
func (p Policy) Validate() error {
	var errs []error
	if p.DriverName == "" {
		errs = append(errs, errors.New("the driver's name is not known: failover starts after the driver has told it"))
	}
	switch p.Mode {
	case ModeOff, ModeObserve, ModeEnforce:
	default:
		errs = append(errs, fmt.Errorf("--failover-mode=%s: must be off, observe or enforce", p.Mode))
	}
	switch p.Fence {
	case FenceNone, FenceUnpublish, FenceNetwork:
	default:
		errs = append(errs, fmt.Errorf("--fence=%s: must be none, unpublish or network", p.Fence))
	}
	if err := validShare(p.MaxFailingNodes); err != nil {
		errs = append(errs, err)
	}
	if p.MovesPerMinute < 1 {
		errs = append(errs, fmt.Errorf("--moves-per-minute=%d: must be at least 1", p.MovesPerMinute))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"--storm-cooldown", p.StormCooldown},
		{"the storm window", p.StormWindow},
		{"--hold-off", p.HoldOff},
		{"--workload-backoff-initial", p.Backoff.Initial},
		{"--workload-backoff-max", p.Backoff.Max},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s=%s: must not be negative", d.flag, d.value))
		}
	}
	if p.Backoff.Free < 1 {
		errs = append(errs, fmt.Errorf("--workload-free-moves=%d: must be at least 1, or nothing would ever move", p.Backoff.Free))
	}
	if p.Backoff.Max < p.Backoff.Initial {
		errs = append(errs, fmt.Errorf("--workload-backoff-max=%s: must not be below --workload-backoff-initial=%s", p.Backoff.Max, p.Backoff.Initial))
	}
	return errors.Join(errs...)
}

// validShare checks a limit of nodes.
func validShare(share intstr.IntOrString) error {
	value, err := intstr.GetScaledValueFromIntOrPercent(&share, 100, false)
	switch {
	case err != nil:
		return fmt.Errorf("--max-failing-nodes=%s: must be a percentage such as 20%%, or a number of nodes", share.String())
	case value < 1, share.Type == intstr.String && value > 100:
		return fmt.Errorf("--max-failing-nodes=%s: must be between 1%% and 100%%, or a number of at least 1", share.String())
	}
	return nil
}
