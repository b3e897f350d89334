package csiclient

import (
	"google.golang.org/grpc/codes"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Class groups calls by what a failed one may leave behind.
type Class int

const (
	// Publish is ControllerPublishVolume. A failed one may have given a node
	// access.
	Publish Class = iota
	// Unpublish is ControllerUnpublishVolume. A failed one may or may not have
	// taken access away; no failure proves that it did.
	Unpublish
	// Read is every call without an effect.
	Read
	// Create is CreateVolume. A failed one may have made a volume whose ID nobody
	// was told.
	Create
	// Delete is DeleteVolume. No failure proves that the volume is gone.
	Delete
)

func classOf(fullMethod string) Class {
	switch fullMethod {
	case csi.Controller_ControllerPublishVolume_FullMethodName:
		return Publish
	case csi.Controller_ControllerUnpublishVolume_FullMethodName:
		return Unpublish
	case csi.Controller_CreateVolume_FullMethodName:
		return Create
	case csi.Controller_DeleteVolume_FullMethodName:
		return Delete
	default:
		return Read
	}
}

type ruling struct {
	outcome volume.Outcome
	why     string
}

type rulings struct{ publish, unpublish, read, create, remove ruling }

// table rules on every gRPC code. A code that a driver sends on purpose to
// refuse is final for a publish: CSI has it checked before anything is done.
// ALREADY_EXISTS is none of them: by it CSI says that the node has the volume. A
// code that also the gRPC library or a proxy makes up, or that says "I broke
// off", proves nothing. Reads change nothing, so the only question there is
// whether asking again can help.
//
// A create is final only by a code that proves that it made nothing: one that
// refuses the request, or RESOURCE_EXHAUSTED, by which CSI has a driver say that
// there is no room where the volume was to be. ALREADY_EXISTS is final too: the
// volume of that name is not of our request.
var table = [...]rulings{
	codes.OK: {
		publish:   ruling{volume.OutcomeOK, "done"},
		unpublish: ruling{volume.OutcomeOK, "done"},
		read:      ruling{volume.OutcomeOK, "answered"},
		create:    ruling{volume.OutcomeOK, "done"},
		remove:    ruling{volume.OutcomeOK, "done"},
	},
	codes.Canceled: {
		publish:   ruling{volume.OutcomeUncertain, "we stopped waiting; the driver may go on and publish"},
		unpublish: ruling{volume.OutcomeUncertain, "we stopped waiting; the driver may go on and unpublish"},
		read:      ruling{volume.OutcomeRetry, "we stopped waiting"},
		create:    ruling{volume.OutcomeUncertain, "we stopped waiting; the driver may go on and create"},
		remove:    ruling{volume.OutcomeUncertain, "we stopped waiting; the driver may go on and delete"},
	},
	codes.Unknown: {
		publish:   ruling{volume.OutcomeUncertain, "an error without a code, or a panic caught half-way; the volume may be published"},
		unpublish: ruling{volume.OutcomeUncertain, "an error without a code, or a panic caught half-way; the volume may be unpublished"},
		read:      ruling{volume.OutcomeRetry, "an error without a code"},
		create:    ruling{volume.OutcomeUncertain, "an error without a code, or a panic caught half-way; the volume may exist"},
		remove:    ruling{volume.OutcomeUncertain, "an error without a code, or a panic caught half-way; the volume may be gone"},
	},
	codes.InvalidArgument: {
		publish:   ruling{volume.OutcomeFinal, "the request was refused before anything was done"},
		unpublish: ruling{volume.OutcomeFinal, "the request was refused before anything was done; the volume stays as it was"},
		read:      ruling{volume.OutcomeFinal, "the request was refused"},
		create:    ruling{volume.OutcomeFinal, "the request was refused before anything was done"},
		remove:    ruling{volume.OutcomeFinal, "the request was refused before anything was done; the volume stays"},
	},
	codes.DeadlineExceeded: {
		publish:   ruling{volume.OutcomeUncertain, "no answer in time; the driver may go on and publish"},
		unpublish: ruling{volume.OutcomeUncertain, "no answer in time; the driver may go on and unpublish"},
		read:      ruling{volume.OutcomeRetry, "no answer in time"},
		create:    ruling{volume.OutcomeUncertain, "no answer in time; the driver may go on and create"},
		remove:    ruling{volume.OutcomeUncertain, "no answer in time; the driver may go on and delete"},
	},
	codes.NotFound: {
		publish:   ruling{volume.OutcomeFinal, "the volume or the node is not known, so nothing was published"},
		unpublish: ruling{volume.OutcomeUncertain, "the volume or the node is not known, yet the driver did not vouch with OK that nothing is published"},
		read:      ruling{volume.OutcomeFinal, "the volume is not known"},
		create:    ruling{volume.OutcomeFinal, "the source of the volume is not known, so nothing was created"},
		remove:    ruling{volume.OutcomeUncertain, "the volume is not known, yet the driver did not vouch with OK that it is gone"},
	},
	codes.AlreadyExists: {
		publish:   ruling{volume.OutcomeUncertain, "published to this node already in another, incompatible way: the volume is there"},
		unpublish: ruling{volume.OutcomeFinal, "not a code of this call; taken for a refusal, the volume stays as it was"},
		read:      ruling{volume.OutcomeFinal, "not a code of a read; taken for a refusal"},
		create:    ruling{volume.OutcomeFinal, "a volume of that name exists that is not as asked for; none was created"},
		remove:    ruling{volume.OutcomeFinal, "not a code of this call; taken for a refusal, the volume stays"},
	},
	codes.PermissionDenied: {
		publish:   ruling{volume.OutcomeFinal, "refused for want of permission before anything was done"},
		unpublish: ruling{volume.OutcomeFinal, "refused for want of permission; the volume stays as it was"},
		read:      ruling{volume.OutcomeFinal, "refused for want of permission"},
		create:    ruling{volume.OutcomeFinal, "refused for want of permission before anything was done"},
		remove:    ruling{volume.OutcomeFinal, "refused for want of permission; the volume stays"},
	},
	codes.ResourceExhausted: {
		publish:   ruling{volume.OutcomeUncertain, "the node is full, or the reply was too large to receive: in the second case the volume is published"},
		unpublish: ruling{volume.OutcomeUncertain, "short of a resource, or the reply was too large to receive"},
		read:      ruling{volume.OutcomeRetry, "short of a resource, or the reply was too large to receive"},
		create:    ruling{volume.OutcomeFinal, "there is no room where the volume was to be"},
		remove:    ruling{volume.OutcomeUncertain, "short of a resource, or the reply was too large to receive"},
	},
	codes.FailedPrecondition: {
		publish:   ruling{volume.OutcomeFinal, "refused since the volume is published to another node"},
		unpublish: ruling{volume.OutcomeFinal, "refused by a precondition; the volume stays as it was"},
		read:      ruling{volume.OutcomeRetry, "the driver is not ready to answer"},
		create:    ruling{volume.OutcomeFinal, "refused by a precondition before anything was done"},
		remove:    ruling{volume.OutcomeFinal, "refused since the volume is in use; it stays"},
	},
	codes.Aborted: {
		publish:   ruling{volume.OutcomeUncertain, "another call for the volume is under way, which may publish it"},
		unpublish: ruling{volume.OutcomeUncertain, "another call for the volume is under way, which may unpublish it"},
		read:      ruling{volume.OutcomeRetry, "broken off; a list starts again"},
		create:    ruling{volume.OutcomeUncertain, "another call for the volume is under way, which may create it"},
		remove:    ruling{volume.OutcomeUncertain, "another call for the volume is under way, which may delete it"},
	},
	codes.OutOfRange: {
		publish:   ruling{volume.OutcomeFinal, "the request was refused before anything was done"},
		unpublish: ruling{volume.OutcomeFinal, "the request was refused; the volume stays as it was"},
		read:      ruling{volume.OutcomeFinal, "the request was refused"},
		create:    ruling{volume.OutcomeFinal, "the capacity asked for is refused"},
		remove:    ruling{volume.OutcomeFinal, "the request was refused; the volume stays"},
	},
	codes.Unimplemented: {
		publish:   ruling{volume.OutcomeFinal, "the driver does not have this call"},
		unpublish: ruling{volume.OutcomeFinal, "the driver does not have this call; the volume stays as it was"},
		read:      ruling{volume.OutcomeFinal, "the driver does not have this call"},
		create:    ruling{volume.OutcomeFinal, "the driver does not have this call"},
		remove:    ruling{volume.OutcomeFinal, "the driver does not have this call; the volume stays"},
	},
	codes.Internal: {
		publish:   ruling{volume.OutcomeUncertain, "the driver failed half-way, or its reply could not be read: in the second case the volume is published"},
		unpublish: ruling{volume.OutcomeUncertain, "the driver failed half-way, or its reply could not be read"},
		read:      ruling{volume.OutcomeRetry, "the driver failed, or its reply could not be read"},
		create:    ruling{volume.OutcomeUncertain, "the driver failed half-way, or its reply could not be read: in the second case the volume exists"},
		remove:    ruling{volume.OutcomeUncertain, "the driver failed half-way, or its reply could not be read"},
	},
	codes.Unavailable: {
		publish:   ruling{volume.OutcomeUncertain, "the connection broke, maybe after the driver had the request"},
		unpublish: ruling{volume.OutcomeUncertain, "the connection broke, maybe after the driver had the request"},
		read:      ruling{volume.OutcomeRetry, "the driver cannot be reached"},
		create:    ruling{volume.OutcomeUncertain, "the connection broke, maybe after the driver had the request"},
		remove:    ruling{volume.OutcomeUncertain, "the connection broke, maybe after the driver had the request"},
	},
	codes.DataLoss: {
		publish:   ruling{volume.OutcomeUncertain, "the driver or its backend lost data; what was done is not known"},
		unpublish: ruling{volume.OutcomeUncertain, "the driver or its backend lost data; what was done is not known"},
		read:      ruling{volume.OutcomeRetry, "the driver or its backend lost data"},
		create:    ruling{volume.OutcomeUncertain, "the driver or its backend lost data; what was done is not known"},
		remove:    ruling{volume.OutcomeUncertain, "the driver or its backend lost data; what was done is not known"},
	},
	codes.Unauthenticated: {
		publish:   ruling{volume.OutcomeFinal, "refused for want of credentials before anything was done"},
		unpublish: ruling{volume.OutcomeFinal, "refused for want of credentials; the volume stays as it was"},
		read:      ruling{volume.OutcomeFinal, "refused for want of credentials"},
		create:    ruling{volume.OutcomeFinal, "refused for want of credentials before anything was done"},
		remove:    ruling{volume.OutcomeFinal, "refused for want of credentials; the volume stays"},
	},
}

// unheardOf rules on codes that gRPC does not define (yet).
var unheardOf = rulings{
	publish:   ruling{volume.OutcomeUncertain, "a code that gRPC does not define proves nothing"},
	unpublish: ruling{volume.OutcomeUncertain, "a code that gRPC does not define proves nothing"},
	read:      ruling{volume.OutcomeRetry, "a code that gRPC does not define"},
	create:    ruling{volume.OutcomeUncertain, "a code that gRPC does not define proves nothing"},
	remove:    ruling{volume.OutcomeUncertain, "a code that gRPC does not define proves nothing"},
}

// oversized is a create whose reply our own side refused for its size: the code
// is that of a driver without room.
var oversized = ruling{volume.OutcomeUncertain, "the reply was too large to receive; the volume exists"}

// neverSent overrides the table: whatever the code, a request that did not
// leave this process had no effect.
var neverSent = ruling{volume.OutcomeRetry, "the request never left this process"}

// Classify tells what a call of the class leaves behind when it was sent and
// ended with the code, and why.
func Classify(class Class, code codes.Code) (volume.Outcome, string) {
	row := unheardOf
	if int(code) < len(table) {
		row = table[code]
	}
	var r ruling
	switch class {
	case Publish:
		r = row.publish
	case Unpublish:
		r = row.unpublish
	case Create:
		r = row.create
	case Delete:
		r = row.remove
	default:
		r = row.read
	}
	return r.outcome, r.why
}
