package control

import (
	"errors"
	"net/http"
	"time"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// done is the answer where there is nothing to tell.
type done struct{}

func (h *handler) info(*http.Request) (any, error)         { return h.cfg.Info(), nil }
func (h *handler) publications(*http.Request) (any, error) { return h.cfg.Store.Publications() }
func (h *handler) ledger(*http.Request) (any, error)       { return h.cfg.Store.Ledger() }

func (h *handler) createVolume(r *http.Request) (any, error) {
	body, err := read[NewVolume](r)
	if err != nil {
		return nil, err
	}
	if body.Name == "" || body.Capacity < 0 {
		return nil, badRequest{errors.New("a volume needs a name, and no negative capacity")}
	}
	volume, err := h.cfg.Store.CreateVolume(r.Context(), body.Name, state.Range{Required: body.Capacity})
	return ID{ID: volume.ID}, err
}

func (h *handler) failPath(r *http.Request) (any, error) {
	body, err := read[Path](r)
	if err != nil {
		return nil, err
	}
	return done{}, h.cfg.Store.FailPath(r.Context(), body.Volume, body.Node)
}

func (h *handler) healPath(r *http.Request) (any, error) {
	body, err := read[Path](r)
	if err != nil {
		return nil, err
	}
	return done{}, h.cfg.Store.HealPath(r.Context(), body.Volume, body.Node)
}

func (h *handler) setHealth(r *http.Request) (any, error) {
	body, err := read[Health](r)
	if err != nil {
		return nil, err
	}
	if body.Volume == "" {
		return done{}, h.cfg.Store.SetStorageHealth(r.Context(), body.Node, body.Conditions)
	}
	return done{}, h.cfg.Store.SetHealth(r.Context(), body.Volume, body.Node, body.Conditions)
}

func (h *handler) drop(r *http.Request) (any, error) {
	body, err := read[Drop](r)
	if err != nil {
		return nil, err
	}
	if h.cfg.Dropper == nil {
		return nil, errNoProcess
	}
	if body.Duration <= 0 {
		return nil, badRequest{errors.New("the socket needs a duration to be away")}
	}
	return done{}, h.cfg.Dropper.Drop(r.Context(), time.Duration(body.Duration))
}
