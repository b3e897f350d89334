package provisioner

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// operation is what is remembered of a claim whose volume may exist.
type operation struct {
	// claim as it was when it was last seen: it may have gone since.
	claim *v1.PersistentVolumeClaim
	// pv is made and not saved yet. Nil: the volume is in the background.
	pv *v1.PersistentVolume
	// found: an earlier process began it, so that it may have come further than we
	// know.
	found bool
	// perhapsSaved: a PersistentVolume of it may have been in the cluster, may have
	// been used, and may have gone again. An earlier process may have saved it, or
	// a request of ours whose answer was lost.
	perhapsSaved bool
	// since is when it was first noted.
	since time.Time
}

// problem is how often work on a claim has failed, and how it did last.
type problem struct {
	times int
	last  string
	at    time.Time
}

// operations are what was begun and is not over.
type operations struct {
	mu    sync.Mutex
	begun map[types.UID]operation
	// saved are claims whose PersistentVolume was saved and that were not seen
	// bound since, by its name.
	saved map[types.UID]string
	// failures are how often claims have failed.
	failures map[types.UID]int
	// problems are those of the claims in begun.
	problems map[types.UID]problem
	// deleted are PersistentVolumes whose volume is deleted and that are not gone;
	// true: the server has been told to delete the object too.
	deleted map[types.UID]bool
	// locked are volumes that are being deleted, with the PersistentVolumes of the
	// same volume that wait for the end of it.
	locked map[string][]string
}

func newOperations() *operations {
	return &operations{
		begun: map[types.UID]operation{}, saved: map[types.UID]string{}, failures: map[types.UID]int{}, problems: map[types.UID]problem{}, deleted: map[types.UID]bool{},
		locked: map[string][]string{},
	}
}

// get returns what was begun for a claim.
func (o *operations) get(uid types.UID) (operation, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op, ok := o.begun[uid]
	return op, ok
}

// begin notes that a volume may exist for the claim, or how far it has come.
func (o *operations) begin(uid types.UID, op operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was, ok := o.begun[uid]; ok {
		op.since = was.since
		op.perhapsSaved = op.perhapsSaved || was.perhapsSaved || was.found
	}
	o.begun[uid] = op
}

// perhapsSaved notes that the PersistentVolume may have been saved.
func (o *operations) perhapsSaved(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op, ok := o.begun[uid]; ok {
		op.perhapsSaved = true
		o.begun[uid] = op
	}
}

// find is begin for what an earlier process began, or a panic broke off. What is
// known already is more.
func (o *operations) find(uid types.UID, op operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.begun[uid]; !ok {
		o.begun[uid] = op
	}
}

// end notes that no volume is on its way for the claim.
func (o *operations) end(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.begun, uid)
	delete(o.problems, uid)
}

// save notes that the claim's PersistentVolume is in the cluster.
func (o *operations) save(uid types.UID, pv string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.begun, uid)
	delete(o.problems, uid)
	delete(o.failures, uid)
	o.saved[uid] = pv
}

// savedAs is the PersistentVolume that was saved for a claim, or empty.
func (o *operations) savedAs(uid types.UID) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.saved[uid]
}

// unsave forgets that: the claim is bound or gone, or the PersistentVolume is.
func (o *operations) unsave(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.saved, uid)
}

// fail counts a failure of a claim.
func (o *operations) fail(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures[uid]++
}

// failedTimes is how often a claim has failed.
func (o *operations) failedTimes(uid types.UID) (times int, any bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	times, any = o.failures[uid]
	return times, any
}

// forget drops the failures of a claim that is gone, or fine.
func (o *operations) forget(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failures, uid)
}

// setDeleted notes that the volume of a PersistentVolume is deleted, and whether
// the server has been told to delete the object; wasDeleted reads it, and gone
// ends it with the object.
func (o *operations) setDeleted(uid types.UID, object bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted[uid] = object
}

func (o *operations) wasDeleted(uid types.UID) (volume, object bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	object, volume = o.deleted[uid]
	return volume, object
}

func (o *operations) gone(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.deleted, uid)
}

// lockVolume begins the deletion of a volume for a PersistentVolume. It fails while
// the volume is being deleted for another one, whose unlockVolume then returns
// this one as well.
func (o *operations) lockVolume(volume, pv string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	waiting, locked := o.locked[volume]
	if locked {
		o.locked[volume] = append(waiting, pv)
		return false
	}
	o.locked[volume] = nil
	return true
}

// unlockVolume ends it, and returns the PersistentVolumes that wait.
func (o *operations) unlockVolume(volume string) (waiting []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	waiting = o.locked[volume]
	delete(o.locked, volume)
	return waiting
}

// background is how many claims have a volume that may exist.
func (o *operations) background() (inBackground, unsaved int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.begun {
		if op.pv != nil {
			unsaved++
		} else {
			inBackground++
		}
	}
	return inBackground, unsaved
}
