package control

import (
	"net/http"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fault"
)

// withFaults refuses what only a process can do.
func (h *handler) withFaults(serve func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		if h.cfg.Faults == nil {
			return nil, errNoProcess
		}
		return serve(r)
	}
}

func (h *handler) faults(*http.Request) (any, error) { return h.cfg.Faults.Faults(), nil }

func (h *handler) inject(r *http.Request) (any, error) {
	body, err := read[fault.Fault](r)
	if err != nil {
		return nil, err
	}
	id, err := h.cfg.Faults.Inject(body)
	if err != nil {
		return nil, badRequest{err}
	}
	return ID{ID: id}, nil
}

// await answers once the fault has happened to ?hits= calls.
func (h *handler) await(r *http.Request) (any, error) {
	hits, err := hitsOf(r)
	if err != nil {
		return nil, err
	}
	return h.cfg.Faults.AwaitHits(r.Context(), r.PathValue("id"), hits)
}

func (h *handler) release(r *http.Request) (any, error) {
	return done{}, h.cfg.Faults.Release(r.PathValue("id"))
}

// clear takes away the fault of that ID, without one all.
func (h *handler) clear(r *http.Request) (any, error) {
	return done{}, h.cfg.Faults.Clear(r.PathValue("id"))
}
