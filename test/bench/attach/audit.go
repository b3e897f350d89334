package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Requests of a side to the API server, its leases left out.
type Requests struct {
	// Kinds by verb, resource and subresource: "patch volumeattachments/status".
	Kinds map[string]int `json:"kinds"`
	// Total is the number of all writes but events, Events that of the events,
	// Reads that of the gets and lists.
	Total  int `json:"total"`
	Events int `json:"events"`
	Reads  int `json:"reads"`
	// Refused is how many of all were answered with an error.
	Refused int `json:"refused"`
}

// request is a line of the audit log.
type request struct {
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	ObjectRef *struct {
		Resource, Subresource string
	} `json:"objectRef"`
	ResponseStatus *struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received metav1.MicroTime `json:"requestReceivedTimestamp"`
}

// readAudit reads the requests of the sides.
func readAudit(r io.Reader) (all []request, err error) {
	decoder := json.NewDecoder(bufio.NewReaderSize(r, 1<<20))
	for {
		var q request
		if err := decoder.Decode(&q); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if q.Stage == "ResponseComplete" && q.ObjectRef != nil && q.ObjectRef.Resource != "leases" && (q.by(ours) || q.by(theirs)) {
			all = append(all, q)
		}
	}
}

func readAuditFile(path string) ([]request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	all, err := readAudit(f)
	return all, errors.Join(err, f.Close())
}

func (q *request) by(s side) bool { return strings.HasPrefix(q.UserAgent, s.name+"/") }

// count fills in what a burst of a side has asked.
func (b *Burst) count(all []request, s side) {
	c := Requests{Kinds: map[string]int{}}
	for i := range all {
		q := &all[i]
		if !q.by(s) || q.Received.Time.Before(b.Begun) || q.Received.After(b.Settled) {
			continue
		}
		what := q.Verb + " " + q.ObjectRef.Resource
		if q.ObjectRef.Subresource != "" {
			what += "/" + q.ObjectRef.Subresource
		}
		switch q.Verb {
		case "watch":
			continue
		case "get", "list":
			c.Kinds[what]++
			c.Reads++
		default:
			c.Kinds[what]++
			if q.ObjectRef.Resource == "events" {
				c.Events++
			} else {
				c.Total++
			}
		}
		if q.ResponseStatus != nil && q.ResponseStatus.Code >= 400 {
			c.Refused++
		}
	}
	b.Requests = c
}
