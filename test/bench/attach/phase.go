package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// Phase is what was measured in one world.
type Phase struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// LoadBefore and LoadAfter are the machine's load averages over a minute.
	LoadBefore string       `json:"loadBefore"`
	LoadAfter  string       `json:"loadAfter"`
	Runs       []*Run       `json:"runs,omitempty"`
	Rows       []*Row       `json:"rows,omitempty"`
	Floor      *Floor       `json:"floor,omitempty"`
	Hang       *Hang        `json:"hang,omitempty"`
	Bars       []report.Bar `json:"bars,omitempty"`
}

// plan says what a phase measures.
type plan struct {
	name, title string
	config      rig.Config
	// volumes are needed at the driver.
	volumes int
	measure func(context.Context, *stage, *Phase) error
}

// do builds the world of a plan, measures in it, and counts the requests once it
// has ended.
func (p plan) do(ctx context.Context, out string, progress io.Writer) (*Phase, error) {
	_, _ = fmt.Fprintf(progress, "\n%s: %s\n", p.name, p.title)
	phase := &Phase{Name: p.name, Title: p.title, LoadBefore: usage.Load()}
	return phase, world.Within(filepath.Join(out, "attach-logs", p.name), func(dir string) error {
		p.config.Dir, p.config.AuditLog = dir, filepath.Join(dir, "audit.log")
		w, err := enter(ctx, p.config, p.volumes)
		if err != nil {
			return err
		}
		err = p.measure(ctx, w, phase)
		phase.LoadAfter = usage.Load()
		if err := errors.Join(err, w.Stop()); err != nil {
			return err
		}
		return phase.count(p.config.AuditLog)
	})
}

func (p *Phase) count(auditLog string) error {
	requests, err := audit.ReadFile(auditLog, ours.agent(), theirs.agent())
	if err != nil {
		return err
	}
	for _, r := range p.Runs {
		for _, b := range []*Burst{&r.Attach, &r.Detach} {
			b.Requests = audit.Count(requests, r.side.agent(), b.Begun, b.Settled)
		}
	}
	return nil
}
