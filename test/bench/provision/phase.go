package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
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
	Memory     *Memory      `json:"memory,omitempty"`
	Capacity   *Capacity    `json:"capacity,omitempty"`
	Bars       []report.Bar `json:"bars,omitempty"`
}

// plan says what a phase measures.
type plan struct {
	name, title string
	clusterArgs []string
	// latency of the driver.
	latency time.Duration
	// capacity, unless nil, makes it a driver with topology and capacity.
	capacity *csidriver.Capacity
	measure  func(context.Context, *stage, *Phase) error
}

// do builds the world of a plan, measures in it, and counts the requests once it
// has ended.
func (p plan) do(ctx context.Context, out string, progress io.Writer) (*Phase, error) {
	_, _ = fmt.Fprintf(progress, "\n%s: %s\n", p.name, p.title)
	phase := &Phase{Name: p.name, Title: p.title, LoadBefore: usage.Load()}
	return phase, world.Within(logsOf(out, p.name), func(dir string) error {
		w, err := enter(ctx, dir, p)
		if err != nil {
			return err
		}
		err = p.measure(ctx, w, phase)
		phase.LoadAfter = usage.Load()
		if err := errors.Join(err, w.leave()); err != nil {
			return err
		}
		return phase.count(filepath.Join(dir, auditLog))
	})
}

// manager is kube-controller-manager's name in the figures.
const manager = "kube-controller-manager"

// binding picks the requests of the controllers of kube-controller-manager that
// have to do with claims and volumes.
func binding(q *audit.Request) bool {
	if !strings.HasPrefix(q.UserAgent, manager+"/") {
		return false
	}
	for _, name := range []string{"persistent-volume-binder", "pvc-protection-controller", "pv-protection-controller"} {
		if strings.HasSuffix(q.UserAgent, ":"+name) {
			return true
		}
	}
	return false
}

func (p *Phase) count(path string) error {
	if len(p.Runs) == 0 && p.Capacity == nil {
		return nil
	}
	requests, err := audit.ReadFile(path, ours.agent(), theirs.agent(), floor.agent(), binding)
	if err != nil {
		return err
	}
	for _, r := range p.Runs {
		for _, s := range []*Span{&r.Provision.Span, &r.Delete.Span} {
			s.Requests = audit.Count(requests, r.side.agent(), s.Begun, s.Settled)
			s.Manager = audit.Count(requests, binding, s.Begun, s.Settled)
		}
	}
	if p.Capacity != nil {
		p.Capacity.count(requests)
	}
	return nil
}
