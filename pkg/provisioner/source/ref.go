package source

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is the kind of a source.
type Kind string

// The kinds of sources that a CSI driver can copy.
const (
	Snapshot Kind = "VolumeSnapshot"
	Claim    Kind = "PersistentVolumeClaim"
)

// Ref names the object that a volume is made of, so that it can be kept with an
// intent.
type Ref struct {
	Kind      Kind      `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
}

// String names the object for people.
func (r Ref) String() string { return r.key().String() }

func (r Ref) key() key { return key{r.Kind, r.Namespace, r.Name} }

// key is a Ref as claims have it: they name their source without its UID.
type key struct {
	kind            Kind
	namespace, name string
}

func (k key) String() string { return fmt.Sprintf("%s %s/%s", k.kind, k.namespace, k.name) }

func (k key) ref(uid types.UID) Ref { return Ref{k.kind, k.namespace, k.name, uid} }

// finalizer is the one that protects objects of the kind.
func (k key) finalizer() string {
	if k.kind == Snapshot {
		return SnapshotFinalizer
	}
	return CloneFinalizer
}

func (k key) resource() schema.GroupVersionResource {
	if k.kind == Snapshot {
		return snapshotResource
	}
	return claimResource
}

// kindOf is the kind of what a claim names, if a CSI driver can copy it.
func kindOf(apiGroup *string, kind string) (Kind, bool) {
	group := ""
	if apiGroup != nil {
		group = *apiGroup
	}
	switch {
	case group == snapshotGroup && kind == string(Snapshot):
		return Snapshot, true
	case group == v1.GroupName && kind == string(Claim):
		return Claim, true
	default:
		return "", false
	}
}

// keyOf is the source of a claim. spec.dataSource goes before
// spec.dataSourceRef; the API server sets both alike unless the latter names a
// namespace. Found is false for a claim without a source.
func keyOf(claim *v1.PersistentVolumeClaim) (k key, found bool, err error) {
	if src := claim.Spec.DataSource; src != nil {
		kind, ok := kindOf(src.APIGroup, src.Kind)
		if !ok {
			return key{}, true, foreign(src.APIGroup, src.Kind, claim.Namespace, src.Name)
		}
		return key{kind, claim.Namespace, src.Name}, true, nil
	}
	src := claim.Spec.DataSourceRef
	if src == nil {
		return key{}, false, nil
	}
	namespace := namespaceOf(claim, src)
	kind, ok := kindOf(src.APIGroup, src.Kind)
	if !ok {
		return key{}, true, foreign(src.APIGroup, src.Kind, namespace, src.Name)
	}
	k = key{kind, namespace, src.Name}
	if namespace != claim.Namespace {
		return k, true, &Refused{
			What: fmt.Sprintf("spec.dataSourceRef names %s, in another namespace than the claim's, which is not supported", k),
			Do:   fmt.Sprintf("make the claim in namespace %s, or its source in namespace %s", namespace, claim.Namespace),
		}
	}
	return k, true, nil
}

func namespaceOf(claim *v1.PersistentVolumeClaim, src *v1.TypedObjectReference) string {
	if src.Namespace != nil && *src.Namespace != "" {
		return *src.Namespace
	}
	return claim.Namespace
}

// mentions are all sources that a claim names, in either field and any
// namespace: who needs a source is asked more widely than what is copied.
func mentions(claim *v1.PersistentVolumeClaim) (keys []key) {
	if src := claim.Spec.DataSource; src != nil {
		if kind, ok := kindOf(src.APIGroup, src.Kind); ok {
			keys = append(keys, key{kind, claim.Namespace, src.Name})
		}
	}
	if src := claim.Spec.DataSourceRef; src != nil {
		if kind, ok := kindOf(src.APIGroup, src.Kind); ok {
			if k := (key{kind, namespaceOf(claim, src), src.Name}); len(keys) == 0 || keys[0] != k {
				keys = append(keys, k)
			}
		}
	}
	return keys
}
