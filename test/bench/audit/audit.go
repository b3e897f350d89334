// Package audit counts requests to the API server by its audit log.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Requests to the API server, leases left out.
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

// Request is a line of the audit log.
type Request struct {
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

// Agent picks requests.
type Agent func(*Request) bool

// Program picks the requests of a program, by the name that client-go gives as
// its user agent.
func Program(name string) Agent {
	return func(q *Request) bool { return strings.HasPrefix(q.UserAgent, name+"/") }
}

// Read reads the requests of any of the agents that were answered.
func Read(r io.Reader, agents ...Agent) (all []Request, err error) {
	decoder := json.NewDecoder(bufio.NewReaderSize(r, 1<<20))
	for {
		var q Request
		if err := decoder.Decode(&q); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if q.counts() && q.byAny(agents) {
			all = append(all, q)
		}
	}
}

// counts is whether a line tells of a request once, and of one that matters.
func (q *Request) counts() bool {
	return q.Stage == "ResponseComplete" && q.ObjectRef != nil && q.ObjectRef.Resource != "leases"
}

func (q *Request) byAny(agents []Agent) bool {
	return slices.ContainsFunc(agents, func(by Agent) bool { return by(q) })
}

// ReadFile is Read of a file.
func ReadFile(path string, agents ...Agent) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	all, err := Read(f, agents...)
	return all, errors.Join(err, f.Close())
}

// Count sums up what an agent has asked in that time.
func Count(all []Request, by Agent, from, to time.Time) Requests {
	c := Requests{Kinds: map[string]int{}}
	for i := range all {
		q := &all[i]
		if !by(q) || q.Received.Time.Before(from) || q.Received.After(to) || q.Verb == "watch" {
			continue
		}
		what := q.Verb + " " + q.ObjectRef.Resource
		if q.ObjectRef.Subresource != "" {
			what += "/" + q.ObjectRef.Subresource
		}
		c.Kinds[what]++
		switch {
		case q.Verb == "get" || q.Verb == "list":
			c.Reads++
		case q.ObjectRef.Resource == "events":
			c.Events++
		default:
			c.Total++
		}
		if q.ResponseStatus != nil && q.ResponseStatus.Code >= 400 {
			c.Refused++
		}
	}
	return c
}
