// Package capability checks what a volume is asked to be used as.
package capability

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Check says why the driver cannot offer a volume so.
func Check(capability *csi.VolumeCapability) error {
	if capability == nil {
		return errors.New("volume_capability is missing")
	}
	if capability.GetBlock() != nil {
		return errors.New("block volumes are not supported: volumes are directories")
	}
	mode := capability.GetAccessMode().GetMode()
	if mode == csi.VolumeCapability_AccessMode_UNKNOWN {
		return errors.New("access_mode is missing")
	}
	if _, known := csi.VolumeCapability_AccessMode_Mode_name[int32(mode)]; !known {
		return fmt.Errorf("access_mode %d is not known", mode)
	}
	return nil
}

// CheckAll is Check for a list, which must not be empty.
func CheckAll(capabilities []*csi.VolumeCapability) error {
	if len(capabilities) == 0 {
		return errors.New("volume_capabilities are missing")
	}
	for _, capability := range capabilities {
		if err := Check(capability); err != nil {
			return err
		}
	}
	return nil
}
