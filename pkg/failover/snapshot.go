package failover

import (
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Snapshot is everything that Decide may know. It is read-only once built: the
// objects belong to the informers' caches.
type Snapshot struct {
	Policy Policy
	// Synced is false while a cache has not been filled.
	Synced bool
	// Started is when this process began to lead.
	Started  time.Time
	Verdicts []volume.Verdict

	// CSIDriver is nil when there is no such object.
	CSIDriver  *storagev1.CSIDriver
	Nodes      map[string]*v1.Node
	CSINodes   map[string]*storagev1.CSINode
	Namespaces map[string]*v1.Namespace
	// Volumes holds, by name, the PersistentVolumes of the verdicts, and those
	// that the pods and attachments below refer to.
	Volumes map[string]*v1.PersistentVolume
	Claims  map[types.NamespacedName]*v1.PersistentVolumeClaim
	// Pods and Attachments are those of the nodes that a verdict names, by
	// node; attachments of other drivers are left out.
	Pods        map[string][]*v1.Pod
	Attachments map[string][]*storagev1.VolumeAttachment

	Memory Memory
}

// Memory is what one decision leaves for the next.
type Memory struct {
	Breaker Breaker
	// Spent are the moves of the last minute, oldest first.
	Spent []Spending
	// Grants are the moves that have passed the brakes, by UID of the pod or
	// of the VolumeAttachment.
	Grants map[types.UID]Grant
	// Workloads are the moves of a workload so far.
	Workloads map[Workload]History
	// Idle tells since when an attachment of a failing volume has had no pod.
	Idle map[types.UID]time.Time
}

// Breaker is the state of the brake that counts nodes.
type Breaker struct {
	Open bool `json:"open"`
	// Since is when it opened.
	Since time.Time `json:"since,omitzero"`
	// Calm is since when the failing nodes are within the limit; zero while
	// they are not.
	Calm time.Time `json:"calm,omitzero"`
}

// Spending is a number of pods granted at a time.
type Spending struct {
	At   time.Time
	Pods int
}

// Grant is a move that has passed the brakes.
type Grant struct {
	At time.Time
	// Seen is when a decision last concerned it.
	Seen time.Time
}

// Workload names what fails over again and again, across the pods that come
// and go.
type Workload struct {
	// Owner is the UID of the pods' controller, or of a pod without one.
	Owner types.UID
	// Member tells apart the pods of one owner that keep their volume: the
	// pod's name in a StatefulSet, else the name of the first claim.
	Member string
}

// History is how often a workload was moved, and when last.
type History struct {
	Moves int
	Last  time.Time
}
