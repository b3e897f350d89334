package httpserver

import (
	"fmt"
	"net/http"
	"strings"
)

// Check is one named condition of health; Do returns nil, or what is wrong and
// what to do.
type Check struct {
	Name string
	Do   func() error
}

// Checks answers 200 when every check passes, else 503 and the failing ones.
// "?verbose" lists all. The checks run in their given order on each request.
func Checks(checks ...Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var all, failing strings.Builder
		for _, c := range checks {
			if err := c.Do(); err != nil {
				fmt.Fprintf(&failing, "[-]%s: %v\n", c.Name, err)
				fmt.Fprintf(&all, "[-]%s: %v\n", c.Name, err)
				continue
			}
			fmt.Fprintf(&all, "[+]%s ok\n", c.Name)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch {
		case failing.Len() > 0:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprint(w, failing.String())
		case r.URL.Query().Has("verbose"):
			_, _ = fmt.Fprint(w, all.String())
		default:
			_, _ = fmt.Fprintln(w, "ok")
		}
	})
}
