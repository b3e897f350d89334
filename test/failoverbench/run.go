package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// errMissed tells that all was measured and a bar was missed.
var errMissed = errors.New("a bar is missed")

type options struct {
	out                string
	failovers, volumes int
}

// nodes of each world.
const nodes = 5

// phase is one world and what is measured in it.
type phase struct {
	name, title string
	bound       time.Duration
	config      rig.Config
	measure     func(context.Context, *rig.Rig) (failovers, drains []sighting, err error)
	bars        func(failovers []Sample) []Bar
}

func run(ctx context.Context, o options) error {
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	result := &Result{Started: time.Now(), CPUs: runtime.NumCPU(), ConfirmSeconds: confirmAfter.Seconds()}
	var phases []phase
	if o.failovers > 0 {
		phases = append(phases, sequencePhase(o.failovers))
	}
	if o.volumes > 0 {
		phases = append(phases, burstPhase(o.volumes))
	}
	fmt.Print(preamble)
	for _, p := range phases {
		measured, failed := runPhase(ctx, out, p)
		if failed != nil {
			// What was measured before is kept.
			err = fmt.Errorf("measuring %s: %w", p.name, failed)
			break
		}
		measured.print(os.Stdout)
		result.Phases = append(result.Phases, measured)
	}
	met := result.printBars(os.Stdout)
	if err := errors.Join(err, result.save(filepath.Join(out, "failover.json"))); err != nil {
		return err
	}
	if !met {
		return errMissed
	}
	return nil
}

// runPhase builds the phase's world, measures in it, and reads the times from
// the API server's own log once the world has ended.
func runPhase(ctx context.Context, out string, p phase) (_ *Phase, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.bound, fmt.Errorf("it took longer than %v", p.bound))
	defer cancel()
	// Unix sockets have short names: the world lives in a short directory.
	dir, err := os.MkdirTemp("", "ha-bench-")
	if err != nil {
		return nil, err
	}
	p.config.Dir, p.config.AuditLog = dir, filepath.Join(out, p.name+"-audit.log")
	// Other benches keep their results there too.
	logs := filepath.Join(out, p.name+"-logs")
	if err := errors.Join(os.RemoveAll(p.config.AuditLog), os.RemoveAll(logs)); err != nil {
		return nil, err
	}
	fmt.Printf("\n%s\n", p.title)
	measured := &Phase{Name: p.name, Title: p.title, Settings: settings(p.config), LoadBefore: load()}
	world, err := rig.Start(ctx, p.config)
	if err != nil {
		return nil, fmt.Errorf("%w; the logs are in %s", err, filepath.Join(dir, "logs"))
	}
	failovers, drains, err := p.measure(ctx, world)
	measured.LoadAfter = load()
	if err := errors.Join(err, world.Stop(), keepLogs(dir, logs)); err != nil {
		return nil, err
	}
	log, err := readAuditFile(p.config.AuditLog)
	if err != nil {
		return nil, err
	}
	if measured.Failovers, err = log.samples(failovers); err != nil {
		return nil, fmt.Errorf("failovers: %w", err)
	}
	if measured.Drains, err = log.samples(drains); err != nil {
		return nil, fmt.Errorf("drains: %w", err)
	}
	measured.summarize(p.bars)
	return measured, nil
}

// keepLogs copies the logs of the world and removes the rest of it.
func keepLogs(dir, to string) error {
	return errors.Join(os.CopyFS(to, os.DirFS(filepath.Join(dir, "logs"))), os.RemoveAll(dir))
}

// settings are what the world changes of the defaults.
func settings(c rig.Config) string {
	all := append([]string{}, c.Values...)
	all = append(append(all, c.SidecarArgs...), c.NodeArgs...)
	return strings.Join(all, " ")
}

// load is the machine's load over the last minute, empty where it is not told.
func load() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(content), " ")
	return first
}
