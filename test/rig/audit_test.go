package rig

import (
	"strings"
	"testing"
	"time"
)

const auditLog = `{"stage":"RequestReceived","verb":"get","userAgent":"ha-sidecar/v1"}
{"stage":"ResponseComplete","verb":"create","requestURI":"/evict","userAgent":"ha-sidecar/v1 (linux)","user":{"username":"sa"},` +
	`"objectRef":{"resource":"pods","subresource":"eviction","name":"db-0"},"responseStatus":{"code":201},` +
	`"requestReceivedTimestamp":"2026-01-02T03:04:05.000000Z","stageTimestamp":"2026-01-02T03:04:05.250000Z"}
{"stage":"ResponseComplete","verb":"get","userAgent":"kubectl/v1"}
{"stage":"Respo`

func TestParseAudit(t *testing.T) {
	requests, err := parseAudit(strings.NewReader(auditLog))
	if err != nil || len(requests) != 1 {
		t.Fatalf("parseAudit() = %v, %v, want the one of ha-sidecar that was answered", requests, err)
	}
	q := requests[0]
	if q.Resource != "pods" || q.Subresource != "eviction" || q.Name != "db-0" || q.Code != 201 || q.Ended.Sub(q.Begun) != 250*time.Millisecond {
		t.Errorf("parseAudit() = %+v", q)
	}
}

func TestCheckRequests(t *testing.T) {
	for name, c := range map[string]struct {
		request Request
		want    string
	}{
		"allowed":       {request: Request{User: "sa", Code: 201}},
		"not found":     {request: Request{User: "sa", Code: 404}},
		"a watch":       {request: Request{User: "sa"}},
		"forbidden":     {request: Request{User: "sa", Code: 403}, want: "its role lacks it"},
		"somebody else": {request: Request{User: "admin", Code: 200}, want: "not as sa"},
		"cut off":       {request: Request{Code: 401}},
		"no token":      {request: Request{User: "system:anonymous", Code: 403}, want: "not as sa"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkRequests([]Request{c.request}, "sa")
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("checkRequests() = %v, want %q", err, c.want)
			}
		})
	}
}

func TestMostAtOnce(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	span := func(from, to int) Request {
		return Request{Begun: begin.Add(time.Duration(from) * time.Second), Ended: begin.Add(time.Duration(to) * time.Second)}
	}
	for name, c := range map[string]struct {
		requests []Request
		want     int
	}{
		"none":            {},
		"one":             {requests: []Request{span(0, 1)}, want: 1},
		"one after other": {requests: []Request{span(1, 2), span(0, 1)}, want: 1},
		"overlapping":     {requests: []Request{span(0, 3), span(2, 5), span(4, 6), span(4, 5)}, want: 3},
	} {
		t.Run(name, func(t *testing.T) {
			if got := MostAtOnce(c.requests); got != c.want {
				t.Errorf("MostAtOnce() = %d, want %d", got, c.want)
			}
		})
	}
}
