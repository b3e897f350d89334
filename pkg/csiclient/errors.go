package csiclient

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Problem says why the driver cannot be used, and what to do about it.
type Problem struct {
	// What is wrong, with the path, name or call that it concerns.
	What string
	// Do is what a person can do.
	Do string
	// Permanent is true when waiting will not help: the address or the driver
	// is the wrong one.
	Permanent bool
	// Err is the cause, if there is a further one.
	Err error
}

// Error is one line.
func (p *Problem) Error() string {
	if p.Err != nil {
		return fmt.Sprintf("%s: %s; %s", p.What, oneLine(p.Err.Error(), maxMessage), p.Do)
	}
	return p.What + "; " + p.Do
}

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

// IsPermanent reports whether err carries a Problem that waiting will not cure,
// so that a process that starts should give up.
func IsPermanent(err error) bool {
	var p *Problem
	return errors.As(err, &p) && p.Permanent
}

// CallError is a call that failed. Its text is one line of valid UTF-8, 1024
// bytes at most, in which no secret of the request is left: it may go into a
// log, an event or a status.
type CallError struct {
	// Method is the name of the call without its service.
	Method string
	// Code is the driver's, or that of the gRPC library on this side.
	Code codes.Code
	// Message is what went with the code, cleaned.
	Message string
	// Sent is false when the call certainly never left this process.
	Sent bool
	// Why is the reason for the outcome.
	Why string

	outcome  volume.Outcome
	oversize bool
	cause    error
}

// Error implements error.
func (e *CallError) Error() string {
	return oneLine(fmt.Sprintf("calling %s: %s: %s", e.Method, e.Code, e.Message), maxMessage)
}

// Outcome implements volume.Outcomer.
func (e *CallError) Outcome() volume.Outcome { return e.outcome }

// GRPCStatus makes status.FromError and status.Code find the code.
func (e *CallError) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Unwrap returns context.DeadlineExceeded or context.Canceled where the code
// says so, and nil otherwise: the error of the library holds text that was not
// cleaned.
func (e *CallError) Unwrap() error { return e.cause }

func causeOf(code codes.Code) error {
	switch code {
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Canceled:
		return context.Canceled
	default:
		return nil
	}
}

var errClosed = errors.New("the client is closed")

// ErrNoHealth is returned by Sweep when the driver tells nothing about the
// health of volumes.
var ErrNoHealth = errors.New("the driver reports no volume health: it has neither LIST_VOLUME_HEALTH nor GET_VOLUME_HEALTH, " +
	"nor the older VOLUME_CONDITION with LIST_VOLUMES or GET_VOLUME")
