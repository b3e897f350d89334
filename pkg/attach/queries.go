package attach

import (
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// lookup returns the newest version of a VolumeAttachment and its key.
func (l *ledger) lookup(uid types.UID) (va *storagev1.VolumeAttachment, key volume.Key, resolved, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.refs[uid]
	if !ok || r.gone {
		return nil, volume.Key{}, false, false
	}
	return r.va, r.key, r.resolved, true
}

// sourceFor names the volume, see sourceName, that a call for the key goes by: that of who
// wants it, else of whoever names it, else that of the last publish.
func (l *ledger) sourceFor(k volume.Key) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.volumes[k.Handle]
	if !ok || v.keys[k.Node] == nil {
		return ""
	}
	e := v.keys[k.Node]
	name := ""
	for _, r := range sorted(e.refs) {
		if toRef(r).wanted() {
			return sourceName(r.va)
		}
		if name == "" {
			name = sourceName(r.va)
		}
	}
	if name == "" {
		return e.source
	}
	return name
}

// sourcesOf names all volumes, see sourceName, that the key has to do with.
func (l *ledger) sourcesOf(k volume.Key) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.volumes[k.Handle]
	if !ok || v.keys[k.Node] == nil {
		return nil
	}
	e := v.keys[k.Node]
	names := []string{e.source}
	for _, r := range e.refs {
		names = append(names, sourceName(r.va))
	}
	return names
}

// usersOf lists the VolumeAttachments that name a PersistentVolume.
func (l *ledger) usersOf(pv string) []types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var uids []types.UID
	for uid, r := range l.byPV[pv] {
		if !r.gone {
			uids = append(uids, uid)
		}
	}
	return uids
}

// firstTold reports whether the message was not the last one said of the
// VolumeAttachment, and notes it.
func (l *ledger) firstTold(uid types.UID, message string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.refs[uid]
	if !ok || r.told == message {
		return false
	}
	r.told = message
	return true
}

// keysWhere lists the keys for which f holds. It looks at all of them.
func (l *ledger) keysWhere(f func(volume.Key, State) bool) []volume.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []volume.Key
	for h, v := range l.volumes {
		for node, e := range v.keys {
			if k := (volume.Key{Handle: h, Node: node}); f(k, e.state()) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// unsettledOn lists the keys of a node that are not attached, or are to leave it, or
// whose volume something waits for.
func (l *ledger) unsettledOn(node string) []volume.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []volume.Key
	for h := range l.byNode[node] {
		v := l.volumes[h]
		if e := v.keys[node]; e.state() != Attached || e.outOfStep() || len(v.forState) > 0 {
			keys = append(keys, volume.Key{Handle: h, Node: node})
		}
	}
	return keys
}

// handles lists the volumes that a node has or may have.
func (l *ledger) handles() []volume.Handle {
	var handles []volume.Handle
	for _, k := range l.keysWhere(func(_ volume.Key, s State) bool { return s.MayHold() }) {
		handles = append(handles, k.Handle)
	}
	slices.Sort(handles)
	return slices.Compact(handles)
}

// state is what is known of a key.
func (l *ledger) state(k volume.Key) State {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.volumes[k.Handle]; v != nil && v.keys[k.Node] != nil {
		return v.keys[k.Node].state()
	}
	return Absent
}

// attachmentsOf lists the VolumeAttachments of a key.
func (l *ledger) attachmentsOf(k volume.Key) (vas []*storagev1.VolumeAttachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.volumes[k.Handle]; v != nil && v.keys[k.Node] != nil {
		for _, r := range sorted(v.keys[k.Node].refs) {
			if !r.gone {
				vas = append(vas, r.va)
			}
		}
	}
	return vas
}

// attachments lists all VolumeAttachments that are known.
func (l *ledger) attachments() (vas []*storagev1.VolumeAttachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.refs {
		if !r.gone {
			vas = append(vas, r.va)
		}
	}
	return vas
}
