// Package container holds the types in which a kri provider tells about
// containers: what was done to them, and in which state they are.
package container

import (
	"errors"
	"fmt"
)

// SyncAction names a step of SyncPod or KillPod.
type SyncAction string

// The steps of a provider.
const (
	StartContainer SyncAction = "StartContainer"
	KillContainer  SyncAction = "KillContainer"
	InitContainer  SyncAction = "InitContainer"
	MountVolumes   SyncAction = "MountVolumes"
)

// Reasons why a container does not start. The text is what the API shows as the
// reason of a waiting container.
var (
	ErrCrashLoopBackOff      = errors.New("CrashLoopBackOff")
	ErrCreateContainerConfig = errors.New("CreateContainerConfigError")
	ErrRunContainer          = errors.New("RunContainerError")
	ErrFailedMount           = errors.New("FailedMount")
)

// SyncResult is the outcome of one step.
type SyncResult struct {
	Action SyncAction
	// Target is what the step was applied to; a container's name for the
	// container actions.
	Target any
	// Error is a brief reason, nil for success.
	Error error
	// Message tells people more about Error.
	Message string
}

// NewSyncResult returns a successful result; Fail turns it into a failure.
func NewSyncResult(action SyncAction, target any) *SyncResult {
	return &SyncResult{Action: action, Target: target}
}

// Fail records why the step failed.
func (r *SyncResult) Fail(err error, message string) {
	r.Error, r.Message = err, message
}

// PodSyncResult is the outcome of all steps taken for one pod.
type PodSyncResult struct {
	SyncResults []*SyncResult
	// SyncError is a failure that belongs to no single step.
	SyncError error
}

// AddSyncResult appends results.
func (p *PodSyncResult) AddSyncResult(results ...*SyncResult) {
	p.SyncResults = append(p.SyncResults, results...)
}

// Fail records a failure that belongs to no single step.
func (p *PodSyncResult) Fail(err error) { p.SyncError = err }

// Error joins everything that failed; nil when nothing did.
func (p *PodSyncResult) Error() error {
	var errs []error
	if p.SyncError != nil {
		errs = append(errs, fmt.Errorf("syncing pod: %w", p.SyncError))
	}
	for _, r := range p.SyncResults {
		if r.Error != nil {
			errs = append(errs, fmt.Errorf("%s %v: %w: %s", r.Action, r.Target, r.Error, r.Message))
		}
	}
	return errors.Join(errs...)
}
