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
	out                   string
	volumes, runs         int
	peerVolumes, peerRuns int
	managed, managedRuns  int
	hanging               int
	only                  string
}

// plans are what the options ask for.
func (o options) plans() []plan {
	var plans []plan
	if o.runs > 0 && (o.only == "" || o.only == shipped.name) {
		plans = append(plans, comparison(shipped, share{o.runs, o.volumes}, share{o.peerRuns, o.peerVolumes}, os.Stdout))
	}
	if o.runs > 0 && (o.only == "" || o.only == tuned.name) {
		plans = append(plans, comparison(tuned, share{o.runs, o.volumes}, share{o.runs, o.volumes}, os.Stdout))
	}
	if o.runs > 0 && (o.only == "" || o.only == waiting.name) {
		plans = append(plans, comparison(waiting, share{o.runs, o.volumes}, share{o.runs, o.volumes}, os.Stdout))
	}
	if o.runs > 0 && o.managed > 0 && (o.only == "" || o.only == managed.name) {
		share := share{o.managedRuns, o.managed}
		plans = append(plans, comparison(managed, share, share, os.Stdout))
	}
	if o.hanging > 0 && o.only == "" {
		plans = append(plans, hanging(o.hanging, os.Stdout))
	}
	return plans
}

func run(ctx context.Context, o options) error {
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	result := &Result{Started: time.Now(), CPUs: runtime.NumCPU()}
	fmt.Print(preamble)
	for _, p := range o.plans() {
		phase, failed := p.do(ctx, out, os.Stdout)
		if failed != nil {
			// What was measured before is kept.
			err = fmt.Errorf("measuring %s: %w; the logs are in %s", p.name, failed, filepath.Join(out, "attach-logs", p.name))
			break
		}
		phase.summarize()
		phase.judge()
		phase.print(os.Stdout)
		result.Phases = append(result.Phases, phase)
	}
	met := result.printBars(os.Stdout)
	if err := errors.Join(err, report.Save(filepath.Join(out, "attach.json"), result)); err != nil {
		return err
	}
	if !met {
		return errMissed
	}
	return nil
}
