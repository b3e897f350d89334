package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// Phase is what was measured in one world.
type Phase struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// LoadBefore and LoadAfter are the machine's load averages over a minute.
	LoadBefore string `json:"loadBefore"`
	LoadAfter  string `json:"loadAfter"`
	Runs       []*Run `json:"runs,omitempty"`
	Rows       []*Row `json:"rows,omitempty"`
	Floor      *Floor `json:"floor,omitempty"`
	Hang       *Hang  `json:"hang,omitempty"`
	Bars       []Bar  `json:"bars,omitempty"`
}

// plan says what a phase measures.
type plan struct {
	name, title string
	config      rig.Config
	// volumes are needed at the driver.
	volumes int
	measure func(context.Context, *world, *Phase) error
}

// do builds the world of a plan, measures in it, and counts the requests once it
// has ended.
func (p plan) do(ctx context.Context, out string, progress io.Writer) (_ *Phase, err error) {
	// Unix sockets have short names: the world lives in a short directory.
	dir, err := os.MkdirTemp("", "ha-attach-")
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(progress, "\n%s: %s\n", p.name, p.title)
	p.config.Dir, p.config.AuditLog = dir, filepath.Join(dir, "audit.log")
	phase := &Phase{Name: p.name, Title: p.title, LoadBefore: load()}
	logs := filepath.Join(out, "attach-logs", p.name)
	defer func() {
		err = errors.Join(err, os.RemoveAll(logs), os.CopyFS(logs, os.DirFS(filepath.Join(dir, "logs"))), os.RemoveAll(dir))
	}()
	w, err := enter(ctx, p.config, p.volumes)
	if err != nil {
		return nil, err
	}
	err = p.measure(ctx, w, phase)
	phase.LoadAfter = load()
	if err := errors.Join(err, w.Stop()); err != nil {
		return nil, err
	}
	return phase, phase.count(p.config.AuditLog)
}

func (p *Phase) count(auditLog string) error {
	requests, err := readAuditFile(auditLog)
	if err != nil {
		return err
	}
	for _, r := range p.Runs {
		r.Attach.count(requests, r.side)
		r.Detach.count(requests, r.side)
	}
	return nil
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
