package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// VolumePluginMgr knows which CSI drivers attach their volumes
// (CSIDriver.spec.attachRequired). It never changes, and so needs no lock.
type VolumePluginMgr struct {
	attachable map[string]struct{}
}

// NewVolumePluginMgr makes a manager of the named drivers.
func NewVolumePluginMgr(attachableDrivers ...string) *VolumePluginMgr {
	m := &VolumePluginMgr{attachable: make(map[string]struct{}, len(attachableDrivers))}
	for _, driver := range attachableDrivers {
		m.attachable[driver] = struct{}{}
	}
	return m
}

// UniqueVolumeName is the name under which Kubernetes lists the volume of the
// spec. It is an error if the spec names no CSI volume, or one whose driver
// does not attach. A nil manager knows no driver.
func (m *VolumePluginMgr) UniqueVolumeName(spec *Spec) (v1.UniqueVolumeName, error) {
	source, err := spec.csi()
	if err != nil {
		return "", fmt.Errorf("naming volume %q: %w", spec.Name(), err)
	}
	if m == nil {
		m = &VolumePluginMgr{}
	}
	if _, ok := m.attachable[source.Driver]; !ok {
		return "", fmt.Errorf("naming volume %q: driver %q is not among those that attach volumes (%s)",
			spec.Name(), source.Driver, strings.Join(slices.Sorted(maps.Keys(m.attachable)), ", "))
	}
	return UniqueName(source.Driver, Handle(source.VolumeHandle)), nil
}
