package control

import (
	"net/http"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

func (h *handler) volumes(*http.Request) (any, error)   { return h.cfg.Store.Volumes() }
func (h *handler) snapshots(*http.Request) (any, error) { return h.cfg.Store.Snapshots() }

func (h *handler) limits(*http.Request) (any, error) {
	limits, err := h.cfg.Store.Limits()
	return append([]state.Limit{}, limits...), err
}

func (h *handler) setLimit(r *http.Request) (any, error) {
	body, err := read[state.Limit](r)
	if err != nil {
		return nil, err
	}
	return done{}, h.cfg.Store.SetLimit(r.Context(), body)
}

// calls are those of ?method=, without one all.
func (h *handler) calls(r *http.Request) (any, error) {
	if h.cfg.Calls == nil {
		return nil, errNoProcess
	}
	return h.cfg.Calls.Calls(r.URL.Query().Get("method")), nil
}

func (h *handler) counts(*http.Request) (any, error) {
	if h.cfg.Calls == nil {
		return nil, errNoProcess
	}
	return h.cfg.Calls.Counts(), nil
}

func (h *handler) misbehave(r *http.Request) (any, error) {
	body, err := read[misbehave.Mode](r)
	if err != nil {
		return nil, err
	}
	if h.cfg.Misbehave == nil {
		return nil, errNoProcess
	}
	if err := h.cfg.Misbehave.Set(body); err != nil {
		return nil, badRequest{err}
	}
	return done{}, nil
}
