package main

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

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	nodeUser    = "system:node:"
	sidecarUser = "system:serviceaccount:" + rig.SidecarNamespace + ":"
)

// request is one that the API server accepted, by the API server's clock.
type request struct {
	user           string
	received, done time.Time
}

// auditLog holds the accepted writes that matter, in the order in which they
// were received, by what was done to which object: "patch pods/status db-0".
type auditLog map[string][]request

// auditEvent is what is read of a line of the log.
type auditEvent struct {
	Stage string `json:"stage"`
	Verb  string `json:"verb"`
	User  struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource, Subresource, Name string
	} `json:"objectRef"`
	ResponseStatus *struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received metav1.MicroTime `json:"requestReceivedTimestamp"`
	Done     metav1.MicroTime `json:"stageTimestamp"`
}

func readAuditFile(path string) (auditLog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	log, err := readAudit(f)
	return log, errors.Join(err, f.Close())
}

// readAudit reads a log of JSON lines. A last line that was cut off is an error:
// the server has ended by then.
func readAudit(r io.Reader) (auditLog, error) {
	log := auditLog{}
	decoder := json.NewDecoder(bufio.NewReaderSize(r, 1<<20))
	for {
		var e auditEvent
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if key := e.key(); key != "" {
			log[key] = append(log[key], request{e.User.Username, e.Received.Time, e.Done.Time})
		}
	}
	for _, requests := range log {
		slices.SortFunc(requests, func(a, b request) int { return a.received.Compare(b.received) })
	}
	return log, nil
}

// The writes that matter.
const (
	podStatus        = "patch pods/status "
	podEviction      = "create pods/eviction "
	podDelete        = "delete pods/ "
	attachmentStatus = "patch volumeattachments/status "
)

// key names an accepted write that matters, and is empty for all else.
func (e *auditEvent) key() string {
	if e.Stage != "ResponseComplete" || e.ObjectRef == nil || e.ResponseStatus == nil || e.ResponseStatus.Code/100 != 2 {
		return ""
	}
	action := e.Verb + " " + e.ObjectRef.Resource + "/" + e.ObjectRef.Subresource + " "
	switch action {
	case podStatus, podEviction, podDelete, attachmentStatus:
		return action + e.ObjectRef.Name
	}
	return ""
}

// samples times the moves.
func (l auditLog) samples(sightings []sighting) ([]Sample, error) {
	samples := make([]Sample, 0, len(sightings))
	for _, s := range sightings {
		sample, err := l.sample(s)
		if err != nil {
			return nil, fmt.Errorf("pod %s from %s to %s: %w", s.pod, s.from, s.to, err)
		}
		samples = append(samples, sample)
	}
	return samples, nil
}

// sample finds the requests of a move.
func (l auditLog) sample(s sighting) (Sample, error) {
	sample := Sample{Pod: s.pod, From: s.from, To: s.to}
	from, failed := s.begun, !s.abnormal.IsZero()
	if failed {
		signal, ok := stored(l[podStatus+s.pod], s.abnormal, func(user string) bool { return user == nodeUser+s.from })
		if !ok {
			return sample, errors.New("the audit log has no status that told of the failure")
		}
		sample.Signal, from = &signal, signal
	} else {
		sample.Asked = &s.begun
	}
	// A drain is the administrator's, a failover the sidecar's.
	byRight := func(user string) bool { return strings.HasPrefix(user, sidecarUser) == failed }
	for _, key := range []string{podEviction + s.pod, podDelete + s.pod} {
		for _, r := range l[key] {
			if byRight(r.user) && !r.received.Before(from) && (sample.Accepted.IsZero() || r.done.Before(sample.Accepted)) {
				sample.Accepted = r.done
			}
		}
	}
	if sample.Accepted.IsZero() {
		return sample, errors.New("the audit log has no eviction and no deletion")
	}
	var ok bool
	sample.Attached, ok = stored(l[attachmentStatus+s.attachment], s.attached, func(user string) bool { return strings.HasPrefix(user, sidecarUser) })
	if !ok || sample.Attached.Before(sample.Accepted) {
		return sample, errors.New("the audit log has no attachment after the eviction")
	}
	return sample, nil
}

// stored is when the write took effect that a watch told of at seen: it is the
// last one received before that. The watch may tell before the response is
// complete; then it has the better time.
func stored(requests []request, seen time.Time, by func(user string) bool) (at time.Time, ok bool) {
	for _, r := range requests {
		if by(r.user) && !r.received.After(seen) {
			at, ok = r.done, true
		}
	}
	if at.After(seen) {
		at = seen
	}
	return at, ok
}
