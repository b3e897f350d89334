package cache_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach/operationexecutor"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// The signatures of the seed, one by one: a change of one does not compile.
var (
	_ func(*volume.VolumePluginMgr, ...cache.Option) cache.ActualStateOfWorld  = cache.NewActualStateOfWorld
	_ func(*volume.VolumePluginMgr, ...cache.Option) cache.DesiredStateOfWorld = cache.NewDesiredStateOfWorld
	_ func(...string) *volume.VolumePluginMgr                                  = volume.NewVolumePluginMgr

	_ cache.AttachedVolume = struct {
		operationexecutor.AttachedVolume
		MountedByNode       bool
		DetachRequestedTime time.Time
	}{}
	_ cache.VolumeToAttach = struct {
		operationexecutor.VolumeToAttach
	}{}
	_ cache.PodToAdd = struct {
		Pod        *v1.Pod
		VolumeName v1.UniqueVolumeName
		NodeName   string
	}{}
	_ operationexecutor.AttachedVolume = struct {
		VolumeName           v1.UniqueVolumeName
		VolumeSpec           *volume.Spec
		NodeName, DevicePath string
		PluginIsAttachable   bool
	}{}
	_ operationexecutor.VolumeToAttach = struct {
		VolumeName    v1.UniqueVolumeName
		VolumeSpec    *volume.Spec
		NodeName      string
		ScheduledPods []*v1.Pod
	}{}
	_ = volume.Spec{PersistentVolume: (*v1.PersistentVolume)(nil)}
)

// The interfaces of the seed. Interfaces are assignable both ways only if their
// methods are the same.
type seedUpdater interface {
	MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, volumeSpec *volume.Spec, nodeName string, devicePath string) error
	MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName string)
	RemoveVolumeFromReportAsAttached(volumeName v1.UniqueVolumeName, nodeName string) error
	AddVolumeToReportAsAttached(volumeName v1.UniqueVolumeName, nodeName string)
}

type seedActual interface {
	seedUpdater
	AddVolumeNode(volumeSpec *volume.Spec, nodeName string, devicePath string) (v1.UniqueVolumeName, error)
	SetVolumeMountedByNode(volumeName v1.UniqueVolumeName, nodeName string, mounted bool) error
	ResetNodeStatusUpdateNeeded(nodeName string) error
	ResetDetachRequestTime(volumeName v1.UniqueVolumeName, nodeName string)
	SetDetachRequestTime(volumeName v1.UniqueVolumeName, nodeName string) (time.Duration, error)
	DeleteVolumeNode(volumeName v1.UniqueVolumeName, nodeName string)
	VolumeNodeExists(volumeName v1.UniqueVolumeName, nodeName string) bool
	GetAttachedVolumes() []cache.AttachedVolume
	GetAttachedVolumesForNode(nodeName string) []cache.AttachedVolume
	GetVolumesToReportAttached() map[string][]v1.AttachedVolume
}

type seedDesired interface {
	AddNode(nodeName string)
	AddPod(podName types.UniquePodName, pod *v1.Pod, volumeSpec *volume.Spec, nodeName string) (v1.UniqueVolumeName, error)
	DeleteNode(nodeName string) error
	DeletePod(podName types.UniquePodName, volumeName v1.UniqueVolumeName, nodeName string)
	NodeExists(nodeName string) bool
	VolumeExists(volumeName v1.UniqueVolumeName, nodeName string) bool
	GetVolumesToAttach() []cache.VolumeToAttach
	GetPodToAdd() map[types.UniquePodName]cache.PodToAdd
}

func TestInterfacesAreTheSeeds(t *testing.T) {
	var updater operationexecutor.ActualStateOfWorldAttacherUpdater
	var seed seedUpdater = updater
	updater = seed

	// Beyond the seed there is what AttachStates and MultiAttach name, and no more.
	var actual cache.ActualStateOfWorld
	var actualAndMore interface {
		seedActual
		cache.AttachStates
	} = actual
	actual = actualAndMore
	var desired cache.DesiredStateOfWorld
	var desiredAndMore interface {
		seedDesired
		cache.MultiAttach
	} = desired
	desired = desiredAndMore
	if updater != nil || actual != nil || desired != nil {
		t.Error("nothing was assigned but nil")
	}
}

// TestSeedIsTheDefault: without an option the rules are the seed's.
func TestSeedIsTheDefault(t *testing.T) {
	spec := &volume.Spec{PersistentVolume: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example", VolumeHandle: "v"},
		},
	}}}
	w := cache.NewActualStateOfWorld(volume.NewVolumePluginMgr("csi.example"))
	if _, err := w.AddVolumeNode(spec, "n", ""); err != nil {
		t.Fatal(err)
	}
	if !w.GetAttachedVolumes()[0].MountedByNode {
		t.Error("a new pair is not taken for mounted")
	}
}
