package virtualnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// ServeControl serves the control interface (see nodectl) on a unix socket until
// ctx ends. A socket file that an earlier process left is replaced.
func (a *Agent) ServeControl(ctx context.Context, endpoint string) error {
	path := nodectl.SocketPath(endpoint)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replacing the control socket: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listening on the control socket: %w", err)
	}
	server := &http.Server{
		Handler: a.controlHandler(), ReadHeaderTimeout: 5 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the control socket: %w", err)
	}
	return nil
}

func (a *Agent) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(a.Status()); err != nil {
			klog.FromContext(r.Context()).V(4).Info("Status not delivered", "err", err)
		}
	})
	mux.HandleFunc("POST /v1/faults/{fault}", a.withFault(a.inject))
	mux.HandleFunc("DELETE /v1/faults/{fault}", a.withFault(func(_ context.Context, f nodectl.Fault) error {
		a.cfg.Faults.Release(f)
		return nil
	}))
	mux.HandleFunc("DELETE /v1/faults", func(http.ResponseWriter, *http.Request) { a.cfg.Faults.Release(nodectl.Lasting()...) })
	return mux
}

func (a *Agent) withFault(do func(context.Context, nodectl.Fault) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		fault, err := nodectl.ParseFault(r.PathValue("fault"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		klog.FromContext(r.Context()).Info("Fault switched", "fault", fault, "method", r.Method)
		if err := do(r.Context(), fault); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

// inject switches a fault on. Crash and PowerOff end the process.
func (a *Agent) inject(_ context.Context, fault nodectl.Fault) error {
	switch fault {
	case nodectl.PowerOff:
		if err := a.markPowerOff(); err != nil {
			return err
		}
		a.runtime.KillAll()
		return a.crash()
	case nodectl.Crash:
		return a.crash()
	default:
		a.cfg.Faults.Set(fault)
		return nil
	}
}

func (a *Agent) crash() error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) }
