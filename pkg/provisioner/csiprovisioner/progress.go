package csiprovisioner

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// State is how far a volume has come that was begun, for people.
type State string

// States of a volume that was begun.
const (
	// StateWritten: it is written down, and the driver is not called yet.
	StateWritten State = "Written"
	// StateSent: the first call is under way.
	StateSent State = "Sent"
	// StateInDoubt: a call has ended, or its process has, and the volume may exist.
	StateInDoubt State = "InDoubt"
	// StateSentAgain: it is in doubt, and a call is under way that may tell.
	StateSentAgain State = "SentAgain"
	// StateMade: the volume exists; its PersistentVolume is not saved yet.
	StateMade State = "Made"
	// StateUnreadable: the record cannot be read.
	StateUnreadable State = "Unreadable"
)

// Progress is what may be told of a volume that was begun: nothing of the request.
type Progress struct {
	// Claim is NAMESPACE/NAME; empty where the record does not tell.
	Claim string    `json:"claim,omitempty"`
	UID   types.UID `json:"uid"`
	// PersistentVolume is the name that it has, or is to have.
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// Since is when the volume was begun; zero where the record does not tell.
	Since time.Time `json:"since,omitzero"`
	State State     `json:"state"`
}

// Progress lists the volumes that were begun and are not settled, the oldest first.
func (p *Provisioner) Progress() []Progress {
	p.mu.Lock()
	list := make([]Progress, 0, len(p.intents)+len(p.unreadable))
	for uid, in := range p.intents {
		list = append(list, Progress{Claim: claimName(in.Claim), UID: uid, PersistentVolume: in.Volume.Name, Since: in.Since, State: in.state})
	}
	for uid, u := range p.unreadable {
		list = append(list, Progress{Claim: claimName(u.claim), UID: uid, State: StateUnreadable})
	}
	p.mu.Unlock()
	slices.SortFunc(list, func(a, b Progress) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.UID, b.UID), cmp.Compare(a.State, b.State))
	})
	return list
}

// claimName tells whose a record is, if it can be a claim's: one that cannot be
// read may have anything there.
func claimName(ref v1.ObjectReference) string {
	if len(validation.IsDNS1123Label(ref.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(ref.Name)) > 0 {
		return ""
	}
	return ref.Namespace + "/" + ref.Name
}

func compareNames(a, b v1.ObjectReference) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// called notes that a call is under way. tried: one before it may have made the
// volume.
func (p *Provisioner) called(in *intent, tried bool) {
	state := StateSent
	if tried {
		state = StateSentAgain
	}
	p.note(in, state)
}

func (p *Provisioner) note(in *intent, state State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.state = state
}
