package provisioner

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Option changes a ProvisionController that is being made.
type Option func(*ProvisionController)

// WithInformerFactory shares informers: the caller starts them. Without it the
// controller has its own.
func WithInformerFactory(f informers.SharedInformerFactory) Option {
	return func(ctrl *ProvisionController) { ctrl.informers, ctrl.sharedInformers = f, true }
}

// WithEventRecorder delivers events. Without it the controller has its own
// recorder.
func WithEventRecorder(r record.EventRecorder) Option {
	return func(ctrl *ProvisionController) { ctrl.recorder = r }
}

// WithWorkers sets how many claims are worked on at once, and again how many
// volumes are deleted. 4 without it.
func WithWorkers(n int) Option { return func(ctrl *ProvisionController) { ctrl.workers = n } }

// WithRetryInterval sets the first and the longest pause after a failure.
func WithRetryInterval(first, longest time.Duration) Option {
	return func(ctrl *ProvisionController) { ctrl.retryStart, ctrl.retryMax = first, longest }
}

// WithTimeout bounds each request to the API server. 15 s without it.
func WithTimeout(d time.Duration) Option { return func(ctrl *ProvisionController) { ctrl.timeout = d } }

// WithAdditionalNames makes the controller answer to other names as well: those
// of in-tree volumes that have moved to the driver.
func WithAdditionalNames(names ...string) Option {
	return func(ctrl *ProvisionController) { ctrl.additionalNames = names }
}

// WithVolumeName sets how PersistentVolumes are named after their claims. Without
// it the name is "pvc-" and the claim's UID.
func WithVolumeName(name func(*v1.PersistentVolumeClaim) string) Option {
	return func(ctrl *ProvisionController) { ctrl.volumeName = name }
}

// WithFinalizer(false) leaves PersistentVolumes without our finalizer, and takes it
// off those that have it.
func WithFinalizer(on bool) Option { return func(ctrl *ProvisionController) { ctrl.addFinalizer = on } }

// WithoutRetryLimit never gives a claim up, whatever failedRetryThreshold says.
func WithoutRetryLimit() Option { return func(ctrl *ProvisionController) { ctrl.retryForever = true } }

// WithRegistry registers the metrics.
func WithRegistry(r metrics.KubeRegistry) Option {
	return func(ctrl *ProvisionController) { ctrl.registry = r }
}

// WithVolumeAttachments keeps a volume from being deleted while a VolumeAttachment
// for it exists, or holds says that a node may still have it; holds may be nil.
// Released has to be called when its answer becomes false.
func WithVolumeAttachments(holds func(volume.Handle) bool) Option {
	return func(ctrl *ProvisionController) { ctrl.guardAttached, ctrl.holds = true, holds }
}

// WithOnChange is told of each volume that was made or deleted, with its
// PersistentVolume. It must not block.
func WithOnChange(f func(*v1.PersistentVolume)) Option {
	return func(ctrl *ProvisionController) { ctrl.onChange = f }
}

// WithSynced has Run wait for further informers, of which the provisioner reads:
// what they do not have yet must not pass for gone.
func WithSynced(synced ...cache.InformerSynced) Option {
	return func(ctrl *ProvisionController) { ctrl.beside = append(ctrl.beside, synced...) }
}
