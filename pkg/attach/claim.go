package attach

import (
	"context"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// facts is what a decision needs beside the ledger, read from the listers.
type facts struct {
	// shared are those PersistentVolumes of the key that more nodes than one
	// may have; what is not among them is exclusive.
	shared map[string]bool
	// exclusive: the key is, by any of its VolumeAttachments.
	exclusive bool
	// nodeID is the node's ID now; empty where it has none.
	nodeID string
	// held: the Node's hold names the volume as fenced.
	held bool
}

// claim is the right to work on a key: one at a time for an exclusive volume,
// and one at a time for each node, and each node ID, of a shared one. It is held
// over the writes and the call of one step, and must be released.
type claim struct {
	ledger *ledger
	key    volume.Key
	before State
	step   step
}

// step is a decision with what is needed to carry it out.
type step struct {
	Action
	key volume.Key
	va  *storagev1.VolumeAttachment
	// nodeID and metadata are of the last publish of the key.
	nodeID   string
	metadata map[string]string
	facts    facts
	// exclusive: the VolumeAttachment's own PersistentVolume is.
	exclusive bool
	// fenced: a VolumeAttachment of the key carries a fence record.
	fenced bool
	// wait is for AwaitHoldOff, for AwaitRecord until it is to be shown, and for
	// Nothing until a fenced key is to be forgotten.
	wait time.Duration
}

// next decides about a key and, if there is something to do, claims it. Where
// the step has to wait for its volume, the item is parked, in the same breath,
// so that no wake-up can be lost. The claim is nil unless the step is one to
// carry out by lane.
func (l *ledger) next(k volume.Key, f facts, p parked, now time.Time) (step, *claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.volumes[k.Handle]
	if !ok || v.keys[k.Node] == nil {
		return step{Action: Action{Kind: Nothing}, key: k}, nil
	}
	e := v.keys[k.Node]
	f.exclusive = e.exclusiveBy(f)
	s := e.step(Decide(l.view(v, k, f, now)), k, f)
	switch s.Kind {
	case AwaitHoldOff:
		s.wait = l.holdOffUntil.Sub(now)
		return s, nil
	case AwaitDetach, AwaitNode:
		v.forState[p] = struct{}{}
		return s, nil
	case AwaitRecord:
		s.wait = e.refs[s.UID].patience(now)
		return s, nil
	case Nothing:
		s.wait = l.fade(k, e, now)
		return s, nil
	}
	if s.Kind == AwaitCall || v.fences > 0 || !v.claimable(e, s) {
		v.forClaim[p] = struct{}{}
		s.Kind = AwaitCall
		return s, nil
	}
	return s, l.take(v, e, s)
}

func (l *ledger) take(v *volumeEntry, e *keyEntry, s step) *claim {
	v.calls[s.key.Node] = claimed{exclusive: s.facts.exclusive || e.exclusive, nodeID: s.callID()}
	return &claim{ledger: l, key: s.key, before: e.state(), step: s}
}

func (e *keyEntry) step(a Action, k volume.Key, f facts) step {
	s := step{Action: a, key: k, facts: f, nodeID: e.nodeID, metadata: e.metadata}
	for uid, r := range e.refs {
		s.fenced = s.fenced || volume.Fenced(r.va)
		if uid == a.UID {
			s.va, s.exclusive = r.va, !f.shared[sourceName(r.va)]
		}
	}
	return s
}

// exclusiveBy reports whether anybody wants, or has, the volume on this node as
// one that no other node may have. Several PersistentVolumes may name one
// volume, and the strictest counts.
func (e *keyEntry) exclusiveBy(f facts) bool {
	asked := false
	for _, r := range e.refs {
		if ref := toRef(r); ref.wanted() || ref.Intent {
			if !f.shared[sourceName(r.va)] {
				return true
			}
			asked = true
		}
	}
	return !asked && !f.shared[e.source]
}

func (l *ledger) view(v *volumeEntry, k volume.Key, f facts, now time.Time) View {
	e := v.keys[k.Node]
	view := View{
		State: e.state(), Exclusive: f.exclusive, Held: f.held,
		NodeIDChanged: f.nodeID != "" && e.nodeID != "" && f.nodeID != e.nodeID,
		HoldOff:       e.inherited && now.Before(l.holdOffUntil),
	}
	for _, r := range sorted(e.refs) {
		ref := toRef(r)
		ref.Exclusive = !f.shared[sourceName(r.va)]
		view.Refs = append(view.Refs, ref)
	}
	for node, o := range v.keys {
		if node != k.Node {
			view.Others = append(view.Others, Other{
				Node: node, State: o.state(), Exclusive: o.exclusive, SameNodeID: o.nodeID != "" && o.nodeID == e.nodeID, Kept: o.kept(),
			})
		}
	}
	return view
}

// kept reports whether somebody wants the volume here and says so durably.
func (e *keyEntry) kept() bool {
	for _, r := range e.refs {
		if ref := toRef(r); ref.wanted() && ref.Intent && ref.Durable {
			return true
		}
	}
	return false
}

// claimed is what a claim that is held keeps to itself.
type claimed struct {
	exclusive bool
	// nodeID is by what the driver is called, if it is.
	nodeID string
}

// callID is the node ID that a call of this step names.
func (s step) callID() string {
	if s.nodeID == "" || s.Kind == Publish || s.Kind == Republish {
		return s.facts.nodeID
	}
	return s.nodeID
}

// claimable reports whether a call may start beside those in flight.
func (v *volumeEntry) claimable(e *keyEntry, s step) bool {
	exclusive, nodeID := s.facts.exclusive || e.exclusive, s.callID()
	for other, c := range v.calls {
		if exclusive || c.exclusive || other == s.key.Node || nodeID != "" && c.nodeID == nodeID {
			return false
		}
	}
	return true
}

// claimForFence waits until no call is in the way, and for the hold-off where
// the key is a former leader's: its late publish could land after the fence.
// Lanes start nothing for the volume meanwhile.
func (l *ledger) claimForFence(ctx context.Context, k volume.Key, f facts, now func() time.Time, after func(time.Duration) <-chan time.Time) (*claim, error) {
	l.mu.Lock()
	v, e := l.volume(k.Handle), l.entry(k)
	v.fences++
	defer func() {
		v.fences--
		wake := v.wake(false)
		l.prune(k)
		l.mu.Unlock()
		requeue(wake)
	}()
	for {
		wait, s := l.holdOffUntil.Sub(now()), e.step(Action{Kind: Unpublish}, k, f)
		var due <-chan time.Time
		switch {
		case e.inherited && wait > 0:
			due = after(wait)
		case v.claimable(e, s):
			return l.take(v, e, s), nil
		}
		free := v.free
		l.mu.Unlock()
		var err error
		select {
		case <-free:
		case <-due:
		case <-ctx.Done():
			err = fmt.Errorf("waiting for calls in flight: %w", context.Cause(ctx))
		}
		l.mu.Lock()
		if err != nil {
			return nil, err
		}
		// The entry may have been pruned and made anew while nobody looked.
		e = l.entry(k)
	}
}

// begin notes, before a call, what it may leave behind.
func (c *claim) begin(s State, update func(*keyEntry)) {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	e := c.ledger.entry(c.key)
	e.become(s)
	if update != nil {
		update(e)
	}
}

// exclude notes that a VolumeAttachment is about to be told that no other node
// has the volume. It stays so until the next unpublish.
func (c *claim) exclude() {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	c.ledger.entry(c.key).exclusive = true
}

// end notes, after a call, the state that it left, and what the call proves.
func (c *claim) end(s State, metadata map[string]string, prove func(*proof)) {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	e := c.ledger.entry(c.key)
	e.become(s)
	e.metadata = metadata
	if !s.MayHold() {
		e.exclusive = false
	}
	e.proof.callEnded(s, c.ledger.now())
	prove(&e.proof)
}

// doubtOthers makes uncertain the other nodes of the volume that were taken for
// attached by the ID that was unpublished just now.
func (c *claim) doubtOthers(nodeID string) (doubted []volume.Key) {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	for node, o := range c.ledger.volume(c.key.Handle).keys {
		if node != c.key.Node && o.nodeID == nodeID && o.state() == Attached {
			o.become(Uncertain)
			o.proof.callEnded(Uncertain, c.ledger.now())
			doubted = append(doubted, volume.Key{Handle: c.key.Handle, Node: node})
		}
	}
	return doubted
}

// release gives the claim back and wakes who waits for it. A call that did not
// report its end, since its worker panicked, is uncertain.
func (c *claim) release() {
	l := c.ledger
	l.mu.Lock()
	v, e := l.volume(c.key.Handle), l.entry(c.key)
	if e.state().inFlight() {
		e.become(Uncertain)
		e.proof.callEnded(Uncertain, l.now())
		e.proof.doubtful = true
	}
	delete(v.calls, c.key.Node)
	close(v.free)
	v.free = make(chan struct{})
	wake := v.wake(e.state() != c.before)
	l.prune(c.key)
	l.mu.Unlock()
	requeue(wake)
}

// wake takes out those that wait for a claim and, if a state changed, those
// that wait for one. Without the difference two items that are kept back by a
// third would wake one another for ever.
func (v *volumeEntry) wake(changed bool) []parked {
	var list []parked
	for p := range v.forClaim {
		list = append(list, p)
	}
	clear(v.forClaim)
	if changed {
		for p := range v.forState {
			list = append(list, p)
		}
		clear(v.forState)
	}
	return list
}

func requeue(list []parked) {
	for _, p := range list {
		p.lane.add(p.item)
	}
}
