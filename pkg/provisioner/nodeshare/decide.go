package nodeshare

import (
	storagev1 "k8s.io/api/storage/v1"
)

// verdict is what a claim is to a node.
type verdict int

const (
	// leave: another node's, or nobody's that we may take.
	leave verdict = iota
	// provision: ours.
	provision
	// compete: whoever is first.
	compete
)

// situation is all that a verdict goes by.
type situation struct {
	// node is ours, selected is the claim's; empty: none yet.
	node, selected string
	// class of the claim; nil: there is none of that name, as far as we know.
	class *storagev1.StorageClass
	// immediate: claims that wait for no pod are shared too.
	immediate bool
	// admitted: the class admits volumes here.
	admitted bool
}

// decide tells what a claim is to us. The selected node alone says that it is
// ours, whatever the class: what is wrong with that is told by provisioning.
func decide(s situation) verdict {
	switch {
	case s.selected == s.node:
		return provision
	case s.selected != "", s.class == nil, !s.immediate, !s.admitted:
		return leave
	case s.class.VolumeBindingMode != nil && *s.class.VolumeBindingMode != storagev1.VolumeBindingImmediate:
		return leave
	default:
		return compete
	}
}
