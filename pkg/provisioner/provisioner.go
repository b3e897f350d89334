package provisioner

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Provisioner makes volumes and deletes them.
type Provisioner interface {
	// Provision makes the volume and returns its PersistentVolume, which the
	// controller saves. An *IgnoredError says that nothing was done since the
	// claim is not this provisioner's.
	Provision(VolumeOptions) (*v1.PersistentVolume, error)
	// Delete removes the volume that Provision made; the PersistentVolume is the
	// controller's. An *IgnoredError says that nothing was done: it is no failure.
	Delete(*v1.PersistentVolume) error
}

// StatefulProvisioner tells how far it came. It is asked in place of Provision.
type StatefulProvisioner interface {
	ProvisionExt(ctx context.Context, options VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error)
}

// ContextDeleter is asked in place of Delete.
type ContextDeleter interface {
	DeleteExt(ctx context.Context, pv *v1.PersistentVolume) error
}

// BlockProvisioner can say that it makes block volumes. Claims for one are
// refused for any other provisioner.
type BlockProvisioner interface {
	SupportsBlock(ctx context.Context) bool
}

// Qualifier can leave claims to others.
type Qualifier interface {
	ShouldProvision(ctx context.Context, claim *v1.PersistentVolumeClaim) bool
}

// Sharer shares the claims with other processes, one on each node. It is asked in
// place of Qualifier.
type Sharer interface {
	// Share reports whether the claim is this process's to provision. If it is
	// not, it is asked again when the claim or its class changes, and, where again
	// is positive, after that time at the latest. It may be asked earlier. An error
	// is logged, not told to the claim, and asked about again after a pause.
	Share(ctx context.Context, claim *v1.PersistentVolumeClaim) (mine bool, again time.Duration, err error)
	// Owns reports whether the claim is this process's already, as far as the claim
	// itself tells. It calls nothing and writes nothing.
	Owns(claim *v1.PersistentVolumeClaim) bool
}

// DeletionGuard can leave PersistentVolumes to others. What it leaves is not
// touched at all: neither deleted nor given a finalizer. It goes by what does not
// change of a PersistentVolume.
type DeletionGuard interface {
	ShouldDelete(ctx context.Context, pv *v1.PersistentVolume) bool
}

// DurableProvisioner remembers across restarts which volumes it has begun.
type DurableProvisioner interface {
	StatefulProvisioner
	// Begun returns the claims whose volume may exist without a
	// PersistentVolume, as they were at the time. later is told of those that
	// show up after it has returned; it does not block.
	Begun(ctx context.Context, later func(*v1.PersistentVolumeClaim)) ([]*v1.PersistentVolumeClaim, error)
	// BegunAs is the PVName that the volume of a claim was begun with; empty: none
	// was. It may be another than it would be now, since how volumes are named can
	// be changed between two processes.
	BegunAs(claim types.UID) string
	// Settle says that the volume of the claim is accounted for or deleted.
	Settle(claim types.UID)
}

// ProvisioningState is what Provision left behind.
type ProvisioningState string

// States of a volume that is being provisioned.
const (
	// ProvisioningFinished: the volume exists if there is no error, and does not
	// and will not if there is one.
	ProvisioningFinished ProvisioningState = "Finished"
	// ProvisioningInBackground: the volume may exist, now or later. Provision is
	// called again until it is Finished, also when the claim has gone.
	ProvisioningInBackground ProvisioningState = "Background"
	// ProvisioningNoChange: nothing was done; what was in the background still is.
	ProvisioningNoChange ProvisioningState = "NoChange"
	// ProvisioningReschedule: there is no volume and cannot be on the selected
	// node; the scheduler is to choose another.
	ProvisioningReschedule ProvisioningState = "Reschedule"
)

// VolumeOptions say what volume is wanted.
type VolumeOptions struct {
	// PersistentVolumeReclaimPolicy the PersistentVolume is to have.
	PersistentVolumeReclaimPolicy v1.PersistentVolumeReclaimPolicy
	// PVName the PersistentVolume is to have.
	PVName string
	// PVC is the claim. It may have gone already where a volume is in the
	// background. It must not be changed.
	PVC *v1.PersistentVolumeClaim
	// Parameters of the class.
	Parameters map[string]string
	// StorageClass of the claim. Nil only where a volume is in the background
	// and the class has gone. It must not be changed.
	StorageClass *storagev1.StorageClass
	// SelectedNode is the name of the node that the scheduler chose, or empty.
	SelectedNode string
	// Abandoned: the claim has gone or has another volume, and a volume that it has is only to be made
	// known, so that it can be deleted.
	Abandoned bool
}

// IgnoredError says that a call was not for this provisioner, and did nothing.
type IgnoredError struct {
	Reason string
}

// Error implements error.
func (e *IgnoredError) Error() string { return fmt.Sprintf("ignored because %s", e.Reason) }

// Infeasible is implemented by errors of Provision that the same claim and class
// meet again and again: it is tried again only after the longest pause, or when
// one of them changes.
type Infeasible interface{ Infeasible() bool }

// InUseError is an error of Delete: the volume is still attached. The deletion
// waits, without a warning.
type InUseError struct {
	Reason string
}

// Error implements error.
func (e *InUseError) Error() string { return fmt.Sprintf("the volume is still in use: %s", e.Reason) }
