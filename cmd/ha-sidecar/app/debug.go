package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ha-sidecar/ha-sidecar/internal/httpserver"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/pkg/failover"
	"github.com/ha-sidecar/ha-sidecar/pkg/health"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// controllers are those that were built; nil: not enabled.
type controllers struct {
	attacher    *attach.Controller
	monitor     *health.Monitor
	decider     *failover.Controller
	provisioner *provisioning
}

// debug serves what the controllers know, as JSON, on the loopback interface.
// They are known once the driver and the API server have answered.
type debug struct {
	elect *election
	built atomic.Pointer[controllers]
}

func (d *debug) register(srv *httpserver.Server) {
	srv.HandleLocal("/debug/leader", http.HandlerFunc(d.leader))
	srv.HandleLocal("/debug/failover", d.page(showFailover))
	srv.HandleLocal("/debug/health", d.page(showHealth))
	srv.HandleLocal("/debug/attach", d.page(showAttach))
	srv.HandleLocal("/debug/provisioner", d.page(showProvisioner))
}

func (d *debug) leader(w http.ResponseWriter, _ *http.Request) {
	if d.elect.IsLeader() {
		_, _ = w.Write([]byte("leads\n"))
		return
	}
	_, _ = w.Write([]byte("waits: " + d.elect.Waiting() + "\n"))
}

// errDisabled is answered by the page of a controller that does not run.
var errDisabled = errors.New("this controller is not enabled: see --controllers and --failover-mode")

// page answers with what show returns; what a standby knows is little, and old.
func (d *debug) page(show func(*controllers, *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		built := d.built.Load()
		if built == nil {
			http.Error(w, "the controllers are not made yet: the driver or the API server has not answered", http.StatusServiceUnavailable)
			return
		}
		content, err := show(built, r)
		switch {
		case errors.Is(err, errDisabled):
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		body, err := json.MarshalIndent(struct {
			Leads   bool `json:"leads"`
			Content any  `json:"content"`
		}{d.elect.IsLeader(), content}, "", "  ")
		if err != nil {
			http.Error(w, fmt.Sprintf("encoding the page: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n'))
	})
}

// showFailover is the last decision; with ?pod=NAMESPACE/NAME, what concerns
// that pod, decided afresh.
func showFailover(c *controllers, r *http.Request) (any, error) {
	if c.decider == nil {
		return nil, errDisabled
	}
	pod := r.URL.Query().Get("pod")
	if pod == "" {
		return c.decider.Decisions(), nil
	}
	namespace, name, _ := strings.Cut(pod, "/")
	answers, err := c.decider.Explain(namespace, name)
	if answers == nil {
		answers = []failover.Answer{}
	}
	return answers, err
}

// healthStatus is a health.Status as the page shows it.
type healthStatus struct {
	Volume volume.Handle `json:"volume"`
	// Node is empty for what the controller plugin says: from everywhere.
	Node         string             `json:"node,omitempty"`
	State        volume.State       `json:"state"`
	Confirmed    bool               `json:"confirmed"`
	WaitingFor   health.Waiting     `json:"waitingFor,omitempty"`
	Since        time.Time          `json:"since,omitzero"`
	ConfirmedAt  time.Time          `json:"confirmedAt,omitzero"`
	SuspectUntil time.Time          `json:"suspectUntil,omitzero"`
	Source       volume.Source      `json:"source"`
	Conditions   []volume.Condition `json:"conditions,omitempty"`
}

// showHealth is every volume that is not healthy.
func showHealth(c *controllers, _ *http.Request) (any, error) {
	if c.monitor == nil {
		return nil, errDisabled
	}
	list := []healthStatus{}
	for _, s := range c.monitor.Statuses() {
		list = append(list, healthStatus{
			Volume: s.Key.Handle, Node: s.Key.Node, State: s.State, Confirmed: s.Confirmed, WaitingFor: s.Waiting,
			Since: s.Since, ConfirmedAt: s.ConfirmedAt, SuspectUntil: s.SuspectUntil, Source: s.Source, Conditions: s.Conditions,
		})
	}
	return list, nil
}

// showAttach is every volume that is, or may be, on a node; with ?volume=HANDLE
// whether that one is.
func showAttach(c *controllers, r *http.Request) (any, error) {
	if c.attacher == nil {
		return nil, errDisabled
	}
	handle := volume.Handle(r.URL.Query().Get("volume"))
	if handle == "" {
		return c.attacher.Volumes(), nil
	}
	return struct {
		Volume volume.Handle `json:"volume"`
		Holds  bool          `json:"holds"`
	}{handle, c.attacher.Holds(handle)}, nil
}
