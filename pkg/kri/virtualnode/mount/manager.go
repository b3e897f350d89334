package mount

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Manager mounts and unmounts. It is safe for concurrent use; what it does to
// one volume it does one at a time.
type Manager struct {
	cfg Config

	mu      sync.Mutex
	entries map[v1.UniqueVolumeName]*entry
	// acked is the list that the API acknowledged last; nil before the first.
	acked []v1.UniqueVolumeName
}

// entry is a volume that at least one pod uses, waits for, or has not been
// relieved of.
type entry struct {
	// lane is held during calls about the volume.
	lane chan struct{}
	// users are pods by UID; guarded by Manager.mu.
	users map[types.UID]bool
	// rec is written with the lane held and Manager.mu locked.
	rec *record
}

// nobody is the user of a volume that was staged and never published.
const nobody = types.UID("")

// Mounted is one published volume.
type Mounted struct {
	Pod         types.UID
	Name        string // the pod's own name of the volume
	Driver      string
	Handle      string
	Path        string
	StagingPath string
}

// New returns a Manager that holds what an earlier process left mounted.
func New(cfg Config) (*Manager, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring mounts: %w", err)
	}
	m := &Manager{cfg: cfg, entries: map[v1.UniqueVolumeName]*entry{}}
	recs, err := m.load()
	if err != nil {
		return nil, err
	}
	for _, rec := range recs {
		e := newEntry(rec)
		for uid := range rec.Publications {
			e.users[uid] = true
		}
		if len(e.users) == 0 { // Staged, or about to be, when the process died.
			e.users[nobody] = true
		}
		m.entries[rec.unique()] = e
	}
	return m, nil
}

func newEntry(rec *record) *entry {
	return &entry{lane: make(chan struct{}, 1), users: map[types.UID]bool{}, rec: rec}
}

func (e *entry) lock(ctx context.Context) error {
	select {
	case e.lane <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *entry) unlock() { <-e.lane }

// InUse is node.status.volumesInUse as it has to be, sorted.
func (m *Manager) InUse() []v1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]v1.UniqueVolumeName, 0, len(m.entries))
	for name, e := range m.entries {
		if !e.rec.NotAttachable {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Acknowledge tells that the API has list.
func (m *Manager) Acknowledge(list []v1.UniqueVolumeName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acked = append([]v1.UniqueVolumeName{}, list...)
}

// report makes the API have InUse, unless it already does.
func (m *Manager) report(ctx context.Context) error {
	want := m.InUse()
	m.mu.Lock()
	same := m.acked != nil && slices.Equal(want, m.acked)
	m.mu.Unlock()
	if same {
		return nil
	}
	if err := m.cfg.Reporter.ReportNode(ctx); err != nil {
		return fmt.Errorf("reporting volumes in use: %w", err)
	}
	return nil
}

// Mounted lists what is published, by pod and name.
func (m *Manager) Mounted() []Mounted {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Mounted
	for _, e := range m.entries {
		for uid, pub := range e.rec.Publications {
			if pub.Published {
				out = append(out, Mounted{
					Pod: uid, Name: pub.Name, Driver: e.rec.Driver, Handle: string(e.rec.Handle),
					Path: pub.Path, StagingPath: e.rec.StagingPath,
				})
			}
		}
	}
	return out
}

// Users returns the UIDs of all pods that a volume is held for.
func (m *Manager) Users() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[types.UID]bool{}
	for _, e := range m.entries {
		maps.Copy(all, e.users)
	}
	return slices.Sorted(maps.Keys(all))
}

// claim makes uid a user of the volume, which puts it into InUse. If the volume
// has an entry, rec is not used.
func (m *Manager) claim(uid types.UID, rec *record) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[rec.unique()]
	if !ok {
		e = newEntry(rec)
		m.entries[rec.unique()] = e
	}
	e.users[uid] = true
	return e
}

// update changes the record of an entry, on disk first.
func (m *Manager) update(e *entry, change func(*record)) error {
	next := *e.rec
	next.Publications = maps.Clone(e.rec.Publications)
	if next.Publications == nil {
		next.Publications = map[types.UID]publication{}
	}
	change(&next)
	if err := m.save(&next); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e.rec = &next
	return nil
}
