package rig

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// auditEvent is what CheckAudit reads of a line of the audit log.
type auditEvent struct {
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	URI       string `json:"requestURI"`
	UserAgent string `json:"userAgent"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	Status *struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// CheckAudit reads the audit log of the API server, and complains of a request
// of ha-sidecar that was made as anyone but the chart's ServiceAccount, or was
// forbidden to it. It tells how many requests it saw.
func (r *Rig) CheckAudit() (requests int, err error) {
	f, err := os.Open(r.cfg.AuditLog)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	want := "system:serviceaccount:" + SidecarNamespace + ":" + r.chart.serviceAccount
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var e auditEvent
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			continue // the server is still writing this line
		}
		if !strings.Contains(e.UserAgent, "ha-sidecar/") || e.Stage != "ResponseComplete" && e.Stage != "ResponseStarted" {
			continue
		}
		requests++
		switch {
		case e.User.Username != want:
			return requests, fmt.Errorf("ha-sidecar asked %s %s as %s, not as %s", e.Verb, e.URI, e.User.Username, want)
		case e.Status != nil && e.Status.Code == http.StatusForbidden:
			return requests, fmt.Errorf("ha-sidecar may not %s %s: its role lacks it", e.Verb, e.URI)
		}
	}
	return requests, scanner.Err()
}
