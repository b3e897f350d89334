package attach

import (
	"sort"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// ledger is what this process knows of every volume on every node: the two
// caches, the VolumeAttachments that speak of them, and the calls in flight. All
// of it is rebuilt from the API.
type ledger struct {
	finalizer string
	now       func() time.Time
	world     *world

	mu      sync.Mutex
	volumes map[volume.Handle]*volumeEntry
	// byNode are the volumes that have an entry for the node.
	byNode map[string]map[volume.Handle]struct{}
	refs   map[types.UID]*ref
	byPV   map[string]map[types.UID]*ref
	// holdOffUntil is when the calls of a former leader have ended for sure.
	holdOffUntil time.Time
	// unheld are the nodes that a live read showed without a hold after that.
	// Holds that came later are of this process: it knows what it has fenced.
	unheld map[string]struct{}
}

// volumeEntry is one volume: its nodes, the calls in flight, and who waits.
type volumeEntry struct {
	spec *volume.Spec
	keys map[string]*keyEntry
	// calls are the claims held, by node.
	calls map[string]claimed
	// free is closed, and replaced, whenever a claim is released.
	free chan struct{}
	// fences counts the Fence calls that wait for a claim: the lanes let them pass.
	fences int
	// forClaim wait for a claim to be released, forState for a key to change.
	forClaim, forState map[parked]struct{}
}

// parked is an item that waits for its volume, and the lane it goes back to.
type parked struct {
	lane *lane
	item item
}

// keyEntry is one volume on one node.
type keyEntry struct {
	pair
	// nodeID and metadata are of the last publish.
	nodeID   string
	metadata map[string]string
	// exclusive: published, perhaps, or since given to a VolumeAttachment, as a
	// volume for one node only.
	exclusive bool
	// inherited: the intent is not of this process.
	inherited bool
	// source names the volume that the last publish went by, see sourceName.
	source string
	refs   map[types.UID]*ref
	// leftAt is when a fenced one was first seen without a VolumeAttachment.
	leftAt time.Time
	proof  proof
}

// ref is one VolumeAttachment, in the newest version that was seen or written.
type ref struct {
	va       *storagev1.VolumeAttachment
	resolved bool
	key      volume.Key
	intent   bool
	// durable: the newest version has our finalizer.
	durable bool
	gone    bool
	// told is what was last said of it in an event.
	told string
	// keptSince is when it was first found kept back by a fence record.
	keptSince time.Time
}

// resolution is what a VolumeAttachment speaks of.
type resolution struct {
	ok        bool
	key       volume.Key
	exclusive bool
}

func newLedger(driver string, now func() time.Time) *ledger {
	return &ledger{
		finalizer: FinalizerName(driver),
		now:       now,
		world:     newWorld(driver),
		byNode:    map[string]map[volume.Handle]struct{}{},
		volumes:   map[volume.Handle]*volumeEntry{},
		refs:      map[types.UID]*ref{},
		byPV:      map[string]map[types.UID]*ref{},
		unheld:    map[string]struct{}{},
	}
}

func (l *ledger) volume(h volume.Handle) *volumeEntry {
	v, ok := l.volumes[h]
	if !ok {
		v = &volumeEntry{
			spec: l.world.spec(h),
			keys: map[string]*keyEntry{}, calls: map[string]claimed{}, free: make(chan struct{}),
			forClaim: map[parked]struct{}{}, forState: map[parked]struct{}{},
		}
		l.volumes[h] = v
	}
	return v
}

func (l *ledger) entry(k volume.Key) *keyEntry {
	v := l.volume(k.Handle)
	e, ok := v.keys[k.Node]
	if !ok {
		e = &keyEntry{
			pair: pair{world: l.world, volume: volume.UniqueName(l.world.driver, k.Handle), spec: v.spec, node: k.Node},
			refs: map[types.UID]*ref{},
		}
		v.keys[k.Node] = e
		if l.byNode[k.Node] == nil {
			l.byNode[k.Node] = map[volume.Handle]struct{}{}
		}
		l.byNode[k.Node][k.Handle] = struct{}{}
	}
	return e
}

// observe takes in a version of a VolumeAttachment, from the informer, a live
// read or an answer to a write. Older versions than the one known are ignored,
// so that the ledger always reads its own writes. fresh tells of something that
// a backoff must not delay: a new VolumeAttachment, a deletion, a fence record
// that came or went; foreign of our finalizer on one that was known without it,
// and that this process did not write.
func (l *ledger) observe(va *storagev1.VolumeAttachment, res resolution) (fresh, foreign bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, known := l.refs[va.UID]
	switch {
	case !known:
		r = &ref{va: va}
		l.refs[va.UID] = r
		if pv := pvName(va); pv != "" {
			if l.byPV[pv] == nil {
				l.byPV[pv] = map[types.UID]*ref{}
			}
			l.byPV[pv][va.UID] = r
		}
		fresh = true
	case r.gone || older(va, r.va):
		return false, false
	default:
		foreign = !r.intent && !hasFinalizer(r.va.Finalizers, l.finalizer) && hasFinalizer(va.Finalizers, l.finalizer)
		fresh = (va.DeletionTimestamp != nil) != (r.va.DeletionTimestamp != nil) || volume.Fenced(va) != volume.Fenced(r.va)
		if r.stripped(va, l.finalizer) {
			r.intent, fresh = false, true
		}
		r.va = va
	}
	if !volume.Fenced(va) {
		r.keptSince = time.Time{}
	}
	if !r.resolved && res.ok {
		r.resolved, r.key, fresh = true, res.key, true
		e := l.entry(res.key)
		e.refs[va.UID], e.leftAt = r, time.Time{}
	}
	if r.resolved && !r.intent && hasFinalizer(va.Finalizers, l.finalizer) {
		l.inherit(r, res.exclusive || !res.ok)
	}
	r.durable = hasFinalizer(r.va.Finalizers, l.finalizer)
	l.desire(r)
	return fresh, foreign
}

// stripped reports whether somebody else took our finalizer off one that stays: it
// is to be put back, or a later leader would know nothing of the volume.
func (r *ref) stripped(now *storagev1.VolumeAttachment, finalizer string) bool {
	return r.intent && r.durable && now.DeletionTimestamp == nil && !hasFinalizer(now.Finalizers, finalizer)
}

// desire takes over into the desired state what the VolumeAttachment wants.
func (l *ledger) desire(r *ref) {
	if r.resolved {
		l.entry(r.key).want(r.va.UID, toRef(r).wanted())
	}
}

// inherit takes over an intent that this process did not write.
func (l *ledger) inherit(r *ref, exclusive bool) {
	r.intent = true
	e := l.entry(r.key)
	before := e.state()
	e.become(Inherit(before, r.va.Status.Attached, r.va.DeletionTimestamp != nil))
	e.inherited = true
	e.proof.callEnded(e.state(), l.now())
	e.proof.doubtful = e.proof.doubtful || !r.va.Status.Attached
	e.exclusive = e.exclusive && before.MayHold() || exclusive
	if before.MayHold() {
		return
	}
	e.nodeID = r.va.Annotations[volume.AnnotationNodeID]
	e.metadata = r.va.Status.AttachmentMetadata
	e.source = sourceName(r.va)
}

// observeWrite takes in the answer to a write or a live read of a
// VolumeAttachment that is known; one that was forgotten stays so.
func (l *ledger) observeWrite(va *storagev1.VolumeAttachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.refs[va.UID]
	if !ok || r.gone || older(va, r.va) {
		return
	}
	r.va = va
	if va.DeletionTimestamp != nil && len(va.Finalizers) == 0 {
		r.gone = true
	}
	r.durable = hasFinalizer(va.Finalizers, l.finalizer)
	l.desire(r)
}

// setIntent notes that our finalizer is, or may be, on the VolumeAttachment.
// It is called before the write, so that the informer cannot report as somebody
// else's what is ours.
func (l *ledger) setIntent(uid types.UID, intent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.refs[uid]; ok {
		r.intent = intent
	}
}

// vanished notes that the API no longer knows the VolumeAttachment.
func (l *ledger) vanished(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.refs[uid]; ok {
		r.gone = true
		l.desire(r)
	}
}

// forget drops a VolumeAttachment whose deletion the informer saw. It returns
// its key, where that is known.
func (l *ledger) forget(uid types.UID) (key volume.Key, resolved bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.refs[uid]
	if !ok {
		return volume.Key{}, false
	}
	delete(l.refs, uid)
	if pv := pvName(r.va); pv != "" {
		delete(l.byPV[pv], uid)
		if len(l.byPV[pv]) == 0 {
			delete(l.byPV, pv)
		}
	}
	if !r.resolved {
		return volume.Key{}, false
	}
	e := l.entry(r.key)
	delete(e.refs, uid)
	e.want(uid, false)
	l.prune(r.key)
	return r.key, true
}

// prune drops what says no more than its absence would.
func (l *ledger) prune(k volume.Key) {
	v, ok := l.volumes[k.Handle]
	if !ok {
		return
	}
	if e, ok := v.keys[k.Node]; ok && len(e.refs) == 0 && e.state() == Absent {
		delete(v.keys, k.Node)
		delete(l.byNode[k.Node], k.Handle)
		if len(l.byNode[k.Node]) == 0 {
			delete(l.byNode, k.Node)
		}
	}
	if len(v.keys) == 0 && len(v.calls) == 0 && v.fences == 0 && len(v.forClaim) == 0 {
		delete(l.volumes, k.Handle)
	}
}

func toRef(r *ref) Ref {
	return Ref{
		UID:       r.va.UID,
		Deleting:  r.gone || r.va.DeletionTimestamp != nil,
		Fenced:    volume.Fenced(r.va),
		Intent:    r.intent && !r.gone,
		Durable:   r.durable && !r.gone,
		Committed: r.va.Status.Attached,
	}
}

func sorted(refs map[types.UID]*ref) []*ref {
	list := make([]*ref, 0, len(refs))
	for _, r := range refs {
		list = append(list, r)
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i].va, list[j].va
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return a.CreationTimestamp.Before(&b.CreationTimestamp)
		}
		return a.UID < b.UID
	})
	return list
}

// older reports whether a is for certain an older version than b.
func older(a, b *storagev1.VolumeAttachment) bool {
	c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && c < 0
}

func pvName(va *storagev1.VolumeAttachment) string {
	if va.Spec.Source.PersistentVolumeName == nil {
		return ""
	}
	return *va.Spec.Source.PersistentVolumeName
}
