package journal

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Status is what can be told of a journal without its records.
type Status struct {
	// Namespace and Name are those of the ConfigMaps, the latter but for a number.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Opened: the journal is this process's, under the epoch. Before that nothing
	// else is known.
	Opened bool  `json:"opened"`
	Epoch  int64 `json:"epoch"`
	// ConfigMaps are as many as there are, or are to be.
	ConfigMaps int `json:"configMaps"`
	// Records are those in the cluster that are not to be removed, Bytes what they
	// take.
	Records int `json:"records"`
	Bytes   int `json:"bytes"`
	// Waiting are records that are about to be written.
	Waiting int `json:"waiting"`
}

// Status tells how large the journal is.
func (j *Journal) Status() Status {
	s := Status{Namespace: j.cfg.Namespace, Name: j.cfg.Name}
	select {
	case <-j.opened:
	default:
		return s
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s.Opened, s.Epoch, s.ConfigMaps, s.Waiting = true, j.epoch, len(j.pages), len(j.puts)
	for key, p := range j.where {
		if !j.removals[key] {
			s.Records++
			s.Bytes += recordBytes(key, p.records[key])
		}
	}
	return s
}

// Unread is something in the cluster that may be a record and cannot be read: it is
// of another version, or somebody has changed it. It stays as it is.
type Unread struct {
	Key string
	// ConfigMap is where it is.
	ConfigMap v1.ObjectReference
	// Why says what is wrong with it.
	Why string
}

// Unread is what Open has found, by ConfigMap and key. Records that are not what
// the caller of Put makes are not among them.
func (j *Journal) Unread() []Unread {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.unread)
}

// Page is the ConfigMap that a record is on; nil if it is on none.
func (j *Journal) Page(key string) *v1.ObjectReference {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.where[key]
	if p == nil {
		return nil
	}
	ref := pageRef(j.cfg.Namespace, j.pageName(p.number), p.uid)
	return &ref
}

func pageRef(namespace, name string, uid types.UID) v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: name, UID: uid}
}

// unreadOn lists what cannot be read on a ConfigMap that bears the journal's label.
// stray: it does not have the name of a page.
func unreadOn(cm *v1.ConfigMap, stray bool) []Unread {
	ref := pageRef(cm.Namespace, cm.Name, cm.UID)
	var unread []Unread
	if stray {
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			unread = append(unread, Unread{Key: key, ConfigMap: ref, Why: "the ConfigMap has the label of the journal and not the name of a page"})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(cm.BinaryData)) {
		unread = append(unread, Unread{Key: key, ConfigMap: ref, Why: "it is binary data"})
	}
	return unread
}
