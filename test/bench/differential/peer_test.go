package differential

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevolume "k8s.io/kubernetes/pkg/volume"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// The driver whose volumes are attached, and one whose are not.
const (
	driver        = "attaches.example.com"
	foreignDriver = "does-not.example.com"
)

// The small world of the operations. The last volume is of the driver that does
// not attach.
const (
	volumes = 2
	nodes   = 2
	pods    = 3
)

func nodeOf(i int) string { return fmt.Sprintf("node-%d", i) }

func nameOf(i int) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fmt.Sprintf("kubernetes.io/csi/%s^volume-%d", driver, i))
}

func persistentVolume(i int) *v1.PersistentVolume {
	name := driver
	if i == volumes {
		name = foreignDriver
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pv-%d", i)}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: name, VolumeHandle: fmt.Sprintf("volume-%d", i)}
	return pv
}

// specs are of the same PersistentVolumes on both sides.
type specs struct {
	ours   *volume.Spec
	theirs *kubevolume.Spec
}

func specsOf(i int) specs {
	pv := persistentVolume(i)
	return specs{&volume.Spec{PersistentVolume: pv}, &kubevolume.Spec{PersistentVolume: pv}}
}

// plugin is the part of Kubernetes' CSI plugin that names volumes; a call of any
// other method panics.
type plugin struct {
	kubevolume.AttachableVolumePlugin
}

func (plugin) Init(kubevolume.VolumeHost) error { return nil }
func (plugin) GetPluginName() string            { return "kubernetes.io/csi" }

func (plugin) CanSupport(spec *kubevolume.Spec) bool {
	return spec.PersistentVolume != nil && spec.PersistentVolume.Spec.CSI != nil
}

func (plugin) CanAttach(spec *kubevolume.Spec) (bool, error) {
	return spec.PersistentVolume.Spec.CSI.Driver == driver, nil
}

func (plugin) GetVolumeName(spec *kubevolume.Spec) (string, error) {
	csi := spec.PersistentVolume.Spec.CSI
	return csi.Driver + "^" + csi.VolumeHandle, nil
}

func theirManager(t *testing.T) *kubevolume.VolumePluginMgr {
	t.Helper()
	m := &kubevolume.VolumePluginMgr{}
	if err := m.InitPlugins([]kubevolume.VolumePlugin{plugin{}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	return m
}

func ourManager() *volume.VolumePluginMgr { return volume.NewVolumePluginMgr(driver) }

func theirNode(i int) types.NodeName { return types.NodeName(nodeOf(i)) }
