package app

import (
	"net/http"
	"net/http/pprof"

	"github.com/ha-sidecar/ha-sidecar/internal/httpserver"
)

// profiles are below this path, where `go tool pprof` looks for them.
const profiles = "/debug/pprof/"

// registerProfiles serves profiles of the process. They show what is in its
// memory, and so nobody but this host gets them.
func registerProfiles(srv *httpserver.Server) {
	for name, h := range map[string]http.HandlerFunc{
		"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	} {
		srv.HandleLocal(profiles+name, h)
	}
}
