// Package fault makes calls of the simulated driver go wrong on demand.
package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// Fault is something that is to happen to calls. The order is: Delay, then Hang,
// then the call's effect, then Code. With Effect the call's effect comes first
// and only its answer is late or lost.
type Fault struct {
	// Method is the name of the call, such as "ControllerUnpublishVolume".
	Method string `json:"method"`
	// Volume and Node narrow it down; empty is any. Volume is the volume's ID; for
	// CreateVolume its name does too, and for calls about snapshots the snapshot's
	// ID or name. In a node's process Node is that node for every call.
	Volume string `json:"volume,omitempty"`
	Node   string `json:"node,omitempty"`
	// Code and Message of the error that the call answers. OK: its own answer.
	Code    codes.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
	// Delay waits so long, Hang until the fault is released or cleared; both end
	// when the caller gives up, then without further effect.
	Delay Duration `json:"delay,omitempty"`
	Hang  bool     `json:"hang,omitempty"`
	// Effect applies the call although it fails.
	Effect bool `json:"effect,omitempty"`
	// Detach goes on although the caller has given up: the call lands late.
	Detach bool `json:"detach,omitempty"`
	// Times is how many calls it happens to; 0 is all, until cleared.
	Times int `json:"times,omitempty"`
}

// Validate says what is wrong with a fault.
func (f Fault) Validate() error {
	switch {
	case f.Method == "":
		return errors.New("method is missing")
	case f.Code > codes.Unauthenticated:
		return fmt.Errorf("code %d is no gRPC code", f.Code)
	case f.Delay < 0:
		return errors.New("delay is negative")
	case f.Times < 0:
		return errors.New("times is negative")
	case f.Code == codes.OK && f.Delay == 0 && !f.Hang:
		return errors.New("nothing would happen: give a code, a delay or hang")
	}
	return nil
}

// Status is an injected fault and what it has done so far.
type Status struct {
	ID string `json:"id"`
	Fault
	// Hits counts the calls it has happened to, Waiting those of them that it
	// delays or hangs now.
	Hits     int  `json:"hits"`
	Waiting  int  `json:"waiting"`
	Released bool `json:"released,omitempty"`
}

// Duration is written like "1.5s" in JSON.
type Duration time.Duration

// MarshalJSON writes it as time.Duration prints.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads what time.ParseDuration does.
func (d *Duration) UnmarshalJSON(content []byte) error {
	var text string
	if err := json.Unmarshal(content, &text); err != nil {
		return fmt.Errorf("a duration is a string such as \"1.5s\": %w", err)
	}
	parsed, err := time.ParseDuration(text)
	*d = Duration(parsed)
	return err
}
