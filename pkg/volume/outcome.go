package volume

import "errors"

// Outcome says what a failed CSI call leaves behind, and so what may follow.
type Outcome string

const (
	// OutcomeOK: the call succeeded.
	OutcomeOK Outcome = "ok"
	// OutcomeFinal: the call had no effect and will not have one; the same
	// request is refused again.
	OutcomeFinal Outcome = "final"
	// OutcomeUncertain: the call may have taken effect, or may yet.
	OutcomeUncertain Outcome = "uncertain"
	// OutcomeRetry: the call had no effect; it is worth trying again.
	OutcomeRetry Outcome = "retry"
)

// Outcomer is implemented by errors that know their outcome.
type Outcomer interface{ Outcome() Outcome }

// OutcomeOf finds the outcome of err. An error that does not tell is
// uncertain: not knowing must never pass for "nothing happened".
func OutcomeOf(err error) Outcome {
	if err == nil {
		return OutcomeOK
	}
	var o Outcomer
	if errors.As(err, &o) {
		return o.Outcome()
	}
	return OutcomeUncertain
}
