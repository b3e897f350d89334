package rig

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// Request is one request of ha-sidecar to the API server that was answered, or
// whose answer has begun, as the audit log has it.
type Request struct {
	Verb, URI, User string
	// Resource, Subresource and Name are of what it is about.
	Resource, Subresource, Name string
	// Begun is when the server received it, and Ended when it had answered.
	Begun, Ended time.Time
	// Code is the status of the answer, 0 where the log has none.
	Code int
}

// auditEvent is what is read of a line of the audit log.
type auditEvent struct {
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	URI       string `json:"requestURI"`
	UserAgent string `json:"userAgent"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	Object struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Status struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
	At       time.Time `json:"stageTimestamp"`
}

// Requests reads what ha-sidecar asked so far from the audit log.
func (r *Rig) Requests() (requests []Request, err error) {
	f, err := os.Open(r.cfg.AuditLog)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return parseAudit(f)
}

func parseAudit(log io.Reader) (requests []Request, err error) {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var e auditEvent
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			continue // the server is still writing this line
		}
		if !strings.Contains(e.UserAgent, "ha-sidecar/") || e.Stage != "ResponseComplete" && e.Stage != "ResponseStarted" {
			continue
		}
		requests = append(requests, Request{
			Verb: e.Verb, URI: e.URI, User: e.User.Username,
			Resource: e.Object.Resource, Subresource: e.Object.Subresource, Name: e.Object.Name,
			Begun: e.Received, Ended: e.At, Code: e.Status.Code,
		})
	}
	return requests, scanner.Err()
}

// CheckAudit complains of a request of ha-sidecar that was made as anyone but
// the ServiceAccount of a release, or was forbidden to it. It tells how many requests
// it saw.
func (r *Rig) CheckAudit() (requests int, err error) {
	all, err := r.Requests()
	if err != nil {
		return 0, err
	}
	users := []string{r.chart.user()}
	if r.beside != nil {
		users = append(users, r.beside.user())
	}
	return len(all), checkRequests(all, users...)
}

func checkRequests(requests []Request, users ...string) error {
	for _, q := range requests {
		switch {
		case q.User == "" && q.Code == http.StatusUnauthorized:
			// It ended while the server asked who it is, as with a process that is
			// killed: nothing came of it. Who has no token is system:anonymous.
		case !slices.Contains(users, q.User):
			return fmt.Errorf("ha-sidecar asked %s %s as %s, not as %s", q.Verb, q.URI, q.User, strings.Join(users, " or "))
		case q.Code == http.StatusForbidden:
			return fmt.Errorf("ha-sidecar may not %s %s: its role lacks it", q.Verb, q.URI)
		}
	}
	return nil
}

// MostAtOnce is how many of the requests the server had in hand at once.
func MostAtOnce(requests []Request) (most int) {
	for _, at := range requests {
		now := 0
		for _, q := range requests {
			if !q.Begun.After(at.Begun) && q.Ended.After(at.Begun) {
				now++
			}
		}
		most = max(most, now)
	}
	return most
}
