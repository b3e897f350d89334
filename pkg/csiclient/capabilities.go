package csiclient

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
)

// VolumeCondition is the number of the controller capability VOLUME_CONDITION
// of CSI 1.3 to 1.12. CSI 1.13 reserves the number, so that it still means this
// and nothing else.
const VolumeCondition = csi.ControllerServiceCapability_RPC_Type(11)

// Capabilities is what a driver said that it can do. It is a value that does
// not change; numbers that this version of CSI does not know are kept.
type Capabilities struct {
	services map[csi.PluginCapability_Service_Type]struct{}
	rpcs     map[csi.ControllerServiceCapability_RPC_Type]struct{}
}

// ControllerService reports whether the plugin has a controller service.
func (c Capabilities) ControllerService() bool {
	return c.HasService(csi.PluginCapability_Service_CONTROLLER_SERVICE)
}

// HasService reports whether the plugin has a service capability.
func (c Capabilities) HasService(t csi.PluginCapability_Service_Type) bool {
	_, ok := c.services[t]
	return ok
}

// Has reports whether the controller service has a capability. t may be a
// number that CSI 1.13 does not name, such as VolumeCondition.
func (c Capabilities) Has(t csi.ControllerServiceCapability_RPC_Type) bool {
	_, ok := c.rpcs[t]
	return ok
}

// Equal reports whether both are the same set.
func (c Capabilities) Equal(other Capabilities) bool {
	return maps.Equal(c.services, other.services) && maps.Equal(c.rpcs, other.rpcs)
}

// String lists the controller's capabilities by number, unknown ones as a
// number.
func (c Capabilities) String() string {
	names := make([]string, 0, len(c.rpcs))
	for _, t := range slices.Sorted(maps.Keys(c.rpcs)) {
		switch name, known := csi.ControllerServiceCapability_RPC_Type_name[int32(t)]; {
		case known:
			names = append(names, name)
		case t == VolumeCondition:
			names = append(names, "VOLUME_CONDITION")
		default:
			names = append(names, strconv.Itoa(int(t)))
		}
	}
	return strings.Join(names, ",")
}

func servicesOf(resp *csi.GetPluginCapabilitiesResponse) map[csi.PluginCapability_Service_Type]struct{} {
	set := map[csi.PluginCapability_Service_Type]struct{}{}
	for _, c := range resp.GetCapabilities() {
		if t := c.GetService().GetType(); t != csi.PluginCapability_Service_UNKNOWN {
			set[t] = struct{}{}
		}
	}
	return set
}

func rpcsOf(resp *csi.ControllerGetCapabilitiesResponse) map[csi.ControllerServiceCapability_RPC_Type]struct{} {
	set := map[csi.ControllerServiceCapability_RPC_Type]struct{}{}
	for _, c := range resp.GetCapabilities() {
		if t := c.GetRpc().GetType(); t != csi.ControllerServiceCapability_RPC_UNKNOWN {
			set[t] = struct{}{}
		}
	}
	return set
}
