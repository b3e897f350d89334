package state

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// idPrefix starts every volume ID, snapshotPrefix every snapshot ID.
const (
	idPrefix       = "vol-"
	snapshotPrefix = "snap-"
)

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$`)
	nodeName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,191}$`)
)

// VolumeID is the ID of the volume of that name. It depends on the name alone,
// which makes CreateVolume idempotent without an index, and lets a person write
// a PersistentVolume by hand. Names that make no good file name are hashed. IDs
// stay within the 128 bytes of the CSI size limit.
func VolumeID(name string) string { return idPrefix + idOf(name) }

// SnapshotID is the ID of the snapshot of that name, as VolumeID is of a volume.
func SnapshotID(name string) string { return snapshotPrefix + idOf(name) }

func idOf(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// validID says whether id could be one of ours. Everything else is a volume that
// does not exist, never a path.
func validID(id string) bool { return hasName(id, idPrefix) }

func validSnapshotID(id string) bool { return hasName(id, snapshotPrefix) }

func hasName(id, prefix string) bool {
	name, found := strings.CutPrefix(id, prefix)
	return found && plainName.MatchString(name)
}

// ValidNodeID says whether a node may be called so: like a Kubernetes node, and
// at most 192 bytes, the limit of CSI.
func ValidNodeID(id string) bool { return nodeName.MatchString(id) }
