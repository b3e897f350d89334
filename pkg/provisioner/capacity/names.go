package capacity

import (
	"fmt"
	"hash/fnv"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Names on the objects; all are external-provisioner's, so that one takes over
// the objects of the other.
const (
	// LabelDriver holds the name of the driver.
	LabelDriver = "csi.storage.k8s.io/drivername"
	// LabelManagedBy holds who writes the object: ManagedByCentral, or ManagedBy of
	// the node with --node-deployment.
	LabelManagedBy = "csi.storage.k8s.io/managed-by"
	// ManagedByCentral is for one controller for the whole cluster.
	ManagedByCentral = "external-provisioner"

	namePrefix = "csisc-"
)

// ManagedBy is the value of LabelManagedBy for the controller of a node:
// ManagedByCentral, a dash and the name. Where that is too long for a label, the
// first part is cut and a hash of it put in, and where the name leaves no room for
// that, a hash of the whole takes its place.
func ManagedBy(node string) string {
	const hashLength = 8
	full := ManagedByCentral + "-" + node
	if len(full) <= validation.LabelValueMaxLength {
		return full
	}
	room := validation.LabelValueMaxLength - len(node) - hashLength - 2
	if room <= 0 {
		return ManagedByCentral + "-" + shortHash(full)
	}
	return ManagedByCentral[:room] + "-" + shortHash(ManagedByCentral) + "-" + node
}

// shortHash is FNV-1a of 32 bits, in eight digits.
func shortHash(s string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // it never fails
	return fmt.Sprintf("%08x", h.Sum32())
}
