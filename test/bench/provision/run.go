package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
)

// errMissed tells that all was measured and a bar was missed.
var errMissed = errors.New("a bar is missed")

type options struct {
	out, only, sides string
	// runs of each side; claims of a run in TUNED and in UNLIMITED, shipped in
	// DEFAULT; pairs of a volume and a claim in MEMORY; segments in CAPACITY.
	runs, claims, shipped, memory, segments int
	latency                                 time.Duration
	// capacity is how long a run in CAPACITY is looked at.
	capacity time.Duration

	// who are the sides.
	who []side
}

// check completes the options and says what is wrong with them.
func (o *options) check() (plans []plan, err error) {
	for flag, n := range map[string]int{"runs": o.runs, "claims": o.claims, "default-claims": o.shipped, "memory": o.memory, "segments": o.segments} {
		if n < 1 {
			return nil, fmt.Errorf("--%s is %d: give 1 or more", flag, n)
		}
	}
	if o.latency < 0 {
		return nil, fmt.Errorf("--latency is %v: give 0 or more", o.latency)
	}
	if o.capacity < sampled {
		return nil, fmt.Errorf("--capacity-time is %v: give %v or more", o.capacity, sampled)
	}
	if o.who, err = chosen("sides", o.sides, allSides); err != nil {
		return nil, err
	}
	some, err := chosen("only", o.only, settings)
	if err != nil {
		return nil, err
	}
	for _, s := range some {
		plans = append(plans, s.plan(s, *o))
	}
	return plans, nil
}

func run(ctx context.Context, o options) error {
	plans, err := o.check()
	if err != nil {
		return err
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	result := &Result{Started: time.Now(), CPUs: runtime.NumCPU(), Latency: o.latency.Seconds()}
	fmt.Print(preamble)
	for _, p := range plans {
		phase, failed := p.do(ctx, out, os.Stdout)
		if failed != nil {
			// What was measured before is kept.
			err = fmt.Errorf("measuring %s: %w; the logs are in %s", p.name, failed, logsOf(out, p.name))
			break
		}
		phase.summarize()
		phase.judge()
		phase.print(os.Stdout)
		result.Phases = append(result.Phases, phase)
	}
	met := result.printBars(os.Stdout)
	if err := errors.Join(err, report.Save(filepath.Join(out, "provision.json"), result)); err != nil {
		return err
	}
	if !met {
		return errMissed
	}
	return nil
}

func logsOf(out, name string) string { return filepath.Join(out, "provision-logs", name) }
