package source

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// userIndex finds the claims that still need a source, by the source.
const userIndex = "ha-sidecar.io/provisioner/source"

// waits reports whether a claim may still have a volume made. One that names its
// volume has it already, or wants one that is there.
func waits(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" && claim.Status.Phase != v1.ClaimBound && claim.Status.Phase != v1.ClaimLost
}

// needs are the sources that a claim still needs.
func needs(claim *v1.PersistentVolumeClaim) []key {
	if !waits(claim) {
		return nil
	}
	return mentions(claim)
}

// leavingSource reports whether a claim waits for our finalizer to come off.
func leavingSource(claim *v1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp != nil && slices.Contains(claim.Finalizers, CloneFinalizer)
}

func indexers() cache.Indexers {
	return cache.Indexers{userIndex: func(obj any) ([]string, error) {
		claim, ok := obj.(*v1.PersistentVolumeClaim)
		if !ok {
			return nil, fmt.Errorf("indexing a %T, want a PersistentVolumeClaim", obj)
		}
		var index []string
		for _, k := range needs(claim) {
			index = append(index, k.String())
		}
		return index, nil
	}}
}

// handler looks again at what a change of a claim may have made removable: the
// sources that it no longer needs, and itself once it is being deleted.
func (p *Protection) handler() cache.ResourceEventHandler {
	claimKey := func(c *v1.PersistentVolumeClaim) key { return key{Claim, c.Namespace, c.Name} }
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && leavingSource(claim) {
				p.heard(claim, claimKey(claim))
			}
		},
		UpdateFunc: func(was, is any) {
			before, ok1 := was.(*v1.PersistentVolumeClaim)
			after, ok2 := is.(*v1.PersistentVolumeClaim)
			if !ok1 || !ok2 {
				return
			}
			if leavingSource(after) {
				p.heard(after, claimKey(after))
			}
			still := needs(after)
			for _, k := range needs(before) {
				if !slices.Contains(still, k) {
					p.heard(after, k)
				}
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if claim, ok := obj.(*v1.PersistentVolumeClaim); ok {
				for _, k := range needs(claim) {
					p.heard(claim, k)
				}
			}
		},
	}
}

// waitedFor reports whether a claim that waits for a volume needs the source.
func (p *Protection) waitedFor(k key) (bool, error) {
	keys, err := p.claims.GetIndexer().IndexKeys(userIndex, k.String())
	if err != nil {
		return false, fmt.Errorf("looking for claims that need %s: %w", k, err)
	}
	return len(keys) > 0, nil
}
