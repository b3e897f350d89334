package failover

import "time"

// Action is what is to be done about one unwell volume.
type Action string

const (
	// ActionMove: the PV's name goes into the failing-PV channel (enforce), or
	// an event says that it would (observe).
	ActionMove Action = "move"
	// ActionWait: not now; the answer says when to look again.
	ActionWait Action = "wait"
	// ActionRefuse: not until somebody changes something; the reason says what.
	ActionRefuse Action = "refuse"
	// ActionReport: a move is no answer to this at all.
	ActionReport Action = "report"
)

// rank orders actions: of all reasons the strongest one decides.
func (a Action) rank() int {
	switch a {
	case ActionReport:
		return 3
	case ActionRefuse:
		return 2
	case ActionWait:
		return 1
	default:
		return 0
	}
}

// Reason is one argument for or against a move.
type Reason struct {
	Code Code `json:"code"`
	// Action is what this reason alone asks for; ActionMove is an argument for.
	Action Action `json:"action"`
	// Message is a sentence for people, with the next step where there is one.
	Message string `json:"message"`
	// Look is when the reason may have passed by itself; zero when only a
	// change of the cluster can end it.
	Look time.Time `json:"look,omitzero"`
}

// Code names a kind of reason: CamelCase, stable, few enough for a metric's
// label.
type Code string

// Arguments for a move.
const (
	CodeConfirmedInaccessible Code = "ConfirmedInaccessible"
	CodeAlreadyGranted        Code = "AlreadyGranted"
	CodeUnsafeAllowed         Code = "UnsafeVolumesAllowed"
	CodeOwnerlessAllowed      Code = "OwnerlessAllowed"
	CodeStopStuck             Code = "StopStuck"
)

// What a move does not help against.
const (
	CodeEverywhere  Code = "InaccessibleEverywhere"
	CodeDataLoss    Code = "DataLoss"
	CodeDegraded    Code = "Degraded"
	CodeSuspect     Code = "Suspect"
	CodeNotAttached Code = "NotAttached"
	CodeNoUser      Code = "NoUser"
	CodeNotDetached Code = "NotDetached"
	CodeModeOff     Code = "ModeOff"
)

// Reasons to wait.
const (
	CodeUnconfirmed       Code = "Unconfirmed"
	CodeNotSynced         Code = "CachesNotSynced"
	CodeDriverMissing     Code = "CSIDriverMissing"
	CodeNodeMissing       Code = "NodeMissing"
	CodeVolumeMissing     Code = "PersistentVolumeMissing"
	CodeClaimMissing      Code = "ClaimMissing"
	CodeNamespaceMissing  Code = "NamespaceMissing"
	CodeAttachmentMissing Code = "AttachmentMissing"
	CodeInProgress        Code = "InProgress"
	CodeBeingStopped      Code = "PodBeingStopped"
	CodeDetaching         Code = "Detaching"
	CodeMaybeEverywhere   Code = "MaybeEverywhere"
	CodeHoldOff           Code = "HoldOff"
	CodeBreakerOpen       Code = "BreakerOpen"
	CodeStormSuspected    Code = "StormSuspected"
	CodeBackoff           Code = "WorkloadBackoff"
	CodeRateLimited       Code = "RateLimited"
)

// Reasons to refuse.
const (
	CodeAttachNotRequired Code = "AttachNotRequired"
	CodePaused            Code = "Paused"
	CodeAmbiguousHandle   Code = "AmbiguousHandle"
	CodeClaimMismatch     Code = "ClaimMismatch"
	CodeVolumeUnusable    Code = "VolumeUnusable"
	CodeNoFence           Code = "NoFence"
	CodeOutOfService      Code = "OutOfService"
	CodeOptedOut          Code = "OptedOut"
	CodeScopeInvalid      Code = "ScopeInvalid"
	CodeDaemonSet         Code = "DaemonSetPod"
	CodeMirror            Code = "MirrorPod"
	CodeOwnerless         Code = "OwnerlessPod"
	CodeNotStarted        Code = "PodNotStarted"
	CodeCannotStop        Code = "PodCannotStop"
	CodeUnsafeVolume      Code = "UnsafeVolume"
	CodePodAffinity       Code = "RequiredPodAffinity"
	CodeNowhereToGo       Code = "NowhereToGo"
)
