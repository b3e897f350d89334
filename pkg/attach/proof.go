package attach

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	// absencesNeeded is how often in a row the driver must say that a node does
	// not have a volume: lists of many drivers lag behind their own calls.
	absencesNeeded = 2
	// repairsAtMost is how often in a row a volume is published again because of
	// that. Where it does not help, the driver lists other IDs than it is called
	// with, or nothing of the kind: then a call a minute would be in vain for ever.
	repairsAtMost = 2
)

// proof is what calls and lists prove about one volume on one node.
type proof struct {
	// callEndedAt is when the last call for the key ended, or it was taken over
	// from another process. Only a list that was asked for later says anything.
	callEndedAt time.Time
	// absent counts the lists in a row that say that the node has it not, and
	// repairs the publishes in a row that this led to.
	absent, repairs int
	// answered: the last call was an unpublish, and the driver has answered it.
	answered bool
	// doubtful: a publish ended without telling what it did, so that it may
	// still be at work, and no unpublish has succeeded since.
	doubtful bool
	// uncertainSince is when the key became uncertain; zero if it is not.
	uncertainSince time.Time
}

// callEnded notes that a call has ended, or that the key was taken over, and the
// state that this left.
func (p *proof) callEnded(s State, at time.Time) {
	p.callEndedAt, p.absent, p.answered = at, 0, false
	switch {
	case s != Uncertain:
		p.uncertainSince = time.Time{}
	case p.uncertainSince.IsZero():
		p.uncertainSince = at
	}
}

func (p *proof) published(o volume.Outcome) {
	p.doubtful = p.doubtful || o == volume.OutcomeUncertain
}

func (p *proof) unpublished(err error) {
	if err == nil {
		*p = proof{callEndedAt: p.callEndedAt}
		return
	}
	p.answered = answers(err)
}

// answers reports whether an error is the driver's answer to a call that it has
// finished with, as opposed to one that was broken off, or is still at work, or
// never came to it.
func answers(err error) bool {
	code, ok := codeOf(err)
	return ok && !slices.Contains([]codes.Code{
		codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, codes.Aborted, codes.ResourceExhausted,
	}, code)
}

// findings is what weighing a list led to.
type findings struct {
	// changed are the keys whose state is another one now.
	changed []volume.Key
	// contradicted are those that the driver goes on to list as detached though
	// it has published them again.
	contradicted []volume.Key
	// wake are those that waited for a state of the volume to change.
	wake []parked
}

// weigh takes in where the driver says that volumes are published, by the handle
// that listedAs gives; it was asked at began.
func (l *ledger) weigh(published map[volume.Handle][]string, listedAs func(h volume.Handle, nodeID string) volume.Handle, began time.Time) findings {
	l.mu.Lock()
	defer l.mu.Unlock()
	var f findings
	for handle, v := range l.volumes {
		for node, e := range v.keys {
			nodeIDs, told := published[listedAs(handle, e.nodeID)]
			if _, busy := v.calls[node]; !told || busy || e.nodeID == "" || !l.speaksOf(e, began) {
				continue
			}
			key := volume.Key{Handle: handle, Node: node}
			switch {
			case slices.Contains(nodeIDs, e.nodeID):
				e.proof.absent, e.proof.repairs = 0, 0
			case e.missing(l.now()):
				f.changed = append(f.changed, key)
				f.wake = append(f.wake, v.wake(true)...)
			case e.proof.repairs == repairsAtMost && e.proof.absent == absencesNeeded:
				f.contradicted = append(f.contradicted, key)
			}
		}
	}
	return f
}

// speaksOf reports whether an answer that was asked for at began says anything
// of the key: not while a call of this or a former leader could have changed it.
func (l *ledger) speaksOf(e *keyEntry, began time.Time) bool {
	return began.After(e.proof.callEndedAt) && (!e.inherited || !began.Before(l.holdOffUntil))
}

// missing counts that the driver lists the node without the volume, and reports
// whether that changed the state.
func (e *keyEntry) missing(at time.Time) (changed bool) {
	p := &e.proof
	p.absent++
	if p.absent < absencesNeeded {
		return false
	}
	after := AfterAbsence(e.state(), p.answered && !p.doubtful)
	if after == e.state() {
		return false
	}
	if after == Uncertain {
		if p.repairs == repairsAtMost {
			return false
		}
		p.repairs++
	}
	e.become(after)
	p.callEnded(after, at)
	if !after.MayHold() {
		e.exclusive = false
	}
	return true
}

// oldestUncertain is for how long the first of the uncertain keys has been so.
func (l *ledger) oldestUncertain() (oldest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, v := range l.volumes {
		for _, e := range v.keys {
			if e.state() == Uncertain {
				oldest = max(oldest, now.Sub(e.proof.uncertainSince))
			}
		}
	}
	return oldest
}
