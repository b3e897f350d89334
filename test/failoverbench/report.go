package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

const preamble = `Failovers on a real control plane. All times are by the API server's clock, from its audit log:
  signal    the status of the pod that says its volume is inaccessible is stored
  accepted  the first eviction or deletion of the pod is answered with success
  attached  the VolumeAttachment on another node says attached
  asked     a drain begins
The floor is a drain in the same world: the same pods evicted from a cordoned node by an
administrator, so that kube-controller-manager, the scheduler and the nodes have the same to do
and nobody has to notice and decide. There the polling of kube-controller-manager's attach-detach
controller takes most of the time. It runs with --kube-api-qps=200 instead of its default of 20.
`

// Result is failover.json.
type Result struct {
	Started        time.Time `json:"started"`
	CPUs           int       `json:"cpus"`
	ConfirmSeconds float64   `json:"confirmSeconds"`
	Phases         []*Phase  `json:"phases"`
}

// Phase is what was measured in one world.
type Phase struct {
	Name     string `json:"name"`
	Title    string `json:"title"`
	Settings string `json:"settings"`
	// LoadBefore and LoadAfter are the machine's load averages over a minute.
	LoadBefore string   `json:"loadBefore"`
	LoadAfter  string   `json:"loadAfter"`
	Rows       []Row    `json:"rows"`
	Bars       []Bar    `json:"bars"`
	Failovers  []Sample `json:"failovers"`
	Drains     []Sample `json:"drains"`
}

// Row is a line of the table.
type Row struct {
	What string `json:"what"`
	Stats
}

// Bar is a limit and what was measured against it.
type Bar struct {
	What    string  `json:"what"`
	Limit   float64 `json:"limitSeconds"`
	Seconds float64 `json:"seconds"`
	Met     bool    `json:"met"`
}

func (p *Phase) summarize(bars func([]Sample) []Bar) {
	for _, row := range []struct {
		what    string
		samples []Sample
		of      func(Sample) time.Duration
	}{
		{"signal -> accepted", p.Failovers, signalToAccepted},
		{"  beyond the confirmation", p.Failovers, beyondConfirmation},
		{"signal -> attached elsewhere", p.Failovers, signalToAttached},
		{"  of which accepted -> attached", p.Failovers, acceptedToAttached},
		{"floor: asked -> accepted, drained", p.Drains, askedToAccepted},
		{"floor: accepted -> attached, drained", p.Drains, acceptedToAttached},
	} {
		p.Rows = append(p.Rows, Row{row.what, statsOf(pick(row.samples, row.of))})
	}
	if len(p.Failovers) == 0 {
		return
	}
	p.Bars = bars(p.Failovers)
	for i := range p.Bars {
		p.Bars[i].Met = p.Bars[i].Seconds <= p.Bars[i].Limit
	}
}

func (p *Phase) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "  set: %s\n  load of the machine: %s before, %s after\n\n", p.Settings, p.LoadBefore, p.LoadAfter)
	_, _ = fmt.Fprintf(w, "  %-38s %5s %9s %9s %9s\n", "", "n", "p50", "p99", "max")
	for _, r := range p.Rows {
		_, _ = fmt.Fprintf(w, "  %-38s %5d %7.3f s %7.3f s %7.3f s\n", r.What, r.N, r.P50, r.P99, r.Max)
	}
}

// printBars prints the verdicts and reports whether all bars are met.
func (r *Result) printBars(w io.Writer) bool {
	_, _ = fmt.Fprintf(w, "\nBars, on %d CPUs with --health-confirm-after=%gs:\n", r.CPUs, r.ConfirmSeconds)
	met := true
	for _, p := range r.Phases {
		for _, b := range p.Bars {
			verdict := "met"
			if !b.Met {
				verdict, met = "NOT MET", false
			}
			_, _ = fmt.Fprintf(w, "  %-8s%s: %.3f s\n", verdict, b.What, b.Seconds)
		}
	}
	return met
}

func (r *Result) save(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o600)
}
