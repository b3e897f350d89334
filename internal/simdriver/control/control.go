// Package control is how people and tests talk to the simulated driver: JSON
// over HTTP on a unix socket. See package simctl for the client.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/calls"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fault"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// maxBody is the longest request, in bytes.
const maxBody = 1 << 20

// Dropper takes the CSI socket away for a while.
type Dropper interface {
	Drop(ctx context.Context, duration time.Duration) error
}

// Config of the handler.
type Config struct {
	Store *state.Store
	// Faults and what follows are of the process that serves; nil behind a bare state
	// directory, where only what is in it can be changed.
	Faults    *fault.Registry
	Calls     *calls.Recorder
	Misbehave *misbehave.Switch
	Dropper   Dropper
	// Info tells about the process.
	Info func() Info
}

// Info is what a process tells about itself.
type Info struct {
	Name string `json:"name,omitempty"`
	// Role is "controller", "node" or, without a process, "state".
	Role string `json:"role"`
	Node string `json:"node,omitempty"`
	// Fencing is false once a volume was mounted without a fence.
	Fencing  bool   `json:"fencing"`
	Health   string `json:"health,omitempty"`
	StateDir string `json:"stateDir"`
}

// The bodies of requests.
type (
	// Path names a path between a volume and a node.
	Path struct {
		Volume string `json:"volume"`
		Node   string `json:"node"`
	}
	// Health is what is wrong with a volume, or without one with the storage of
	// the node. Without a node it is the controller's view.
	Health struct {
		Volume     string            `json:"volume,omitempty"`
		Node       string            `json:"node,omitempty"`
		Conditions []state.Condition `json:"conditions"`
	}
	// NewVolume is a volume to be made; Capacity is in bytes.
	NewVolume struct {
		Name     string `json:"name"`
		Capacity int64  `json:"capacity,omitempty"`
	}
	// Drop takes the CSI socket away.
	Drop struct {
		Duration fault.Duration `json:"duration"`
	}
	// ID is the answer where something was made.
	ID struct {
		ID string `json:"id"`
	}
	// Error is the answer where something went wrong.
	Error struct {
		Error string `json:"error"`
	}
)

// errNoProcess answers what only a process can do.
var errNoProcess = errors.New("needs the control socket of a driver process: use --control")

type handler struct{ cfg Config }

// New makes the handler.
func New(cfg Config) (http.Handler, error) {
	if cfg.Store == nil || cfg.Info == nil {
		return nil, errors.New("the control socket needs a store and an info")
	}
	h := &handler{cfg: cfg}
	mux := http.NewServeMux()
	for pattern, serve := range map[string]func(*http.Request) (any, error){
		"GET /v1/info":                  h.info,
		"GET /v1/publications":          h.publications,
		"GET /v1/ledger":                h.ledger,
		"POST /v1/volumes":              h.createVolume,
		"GET /v1/volumes":               h.volumes,
		"GET /v1/snapshots":             h.snapshots,
		"GET /v1/capacity":              h.limits,
		"PUT /v1/capacity":              h.setLimit,
		"GET /v1/calls":                 h.calls,
		"GET /v1/calls/counts":          h.counts,
		"PUT /v1/misbehave":             h.misbehave,
		"POST /v1/paths/fail":           h.failPath,
		"POST /v1/paths/heal":           h.healPath,
		"PUT /v1/health":                h.setHealth,
		"GET /v1/faults":                h.withFaults(h.faults),
		"POST /v1/faults":               h.withFaults(h.inject),
		"DELETE /v1/faults":             h.withFaults(h.clear),
		"GET /v1/faults/{id}":           h.withFaults(h.await),
		"DELETE /v1/faults/{id}":        h.withFaults(h.clear),
		"POST /v1/faults/{id}/released": h.withFaults(h.release),
		"POST /v1/socket/drop":          h.drop,
	} {
		mux.Handle(pattern, answer(serve))
	}
	return mux, nil
}

// badRequest is an error of the caller.
type badRequest struct{ error }

func (b badRequest) Unwrap() error { return b.error }

func answer(serve func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		result, err := serve(r)
		code := http.StatusOK
		if err != nil {
			code, result = codeOf(err), Error{Error: err.Error()}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(result); err != nil {
			klog.FromContext(r.Context()).V(2).Info("Could not answer on the control socket", "err", err)
		}
	}
}

func codeOf(err error) int {
	var bad badRequest
	switch {
	case errors.As(err, &bad), errors.Is(err, state.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, state.ErrNotFound), errors.Is(err, fault.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, state.ErrConflict), errors.Is(err, errNoProcess):
		return http.StatusConflict
	default:
		return http.StatusInternalServerError
	}
}

// read decodes the body strictly: a mistyped field would otherwise be a fault
// that never happens.
func read[T any](r *http.Request) (T, error) {
	var body T
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil {
		return body, badRequest{fmt.Errorf("reading the request: %w", err)}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return body, badRequest{errors.New("reading the request: something follows the JSON object")}
	}
	return body, nil
}

func hitsOf(r *http.Request) (int, error) {
	text := r.URL.Query().Get("hits")
	if text == "" {
		return 0, nil
	}
	hits, err := strconv.Atoi(text)
	if err != nil || hits < 0 {
		return 0, badRequest{fmt.Errorf("hits %q is no number of calls", text)}
	}
	return hits, nil
}
