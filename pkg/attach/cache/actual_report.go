package cache

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// report puts the pair, whose locks are held, into its node's report.
func (w *actualStateOfWorld) report(p *pair) {
	if !p.reported {
		p.reported, p.node.known = true, true
		w.dirty.flag(p.node)
	}
}

// unreport takes the pair, whose locks are held, out of its node's report.
func (w *actualStateOfWorld) unreport(p *pair) (was bool) {
	if was = p.reported; was {
		p.reported = false
		w.dirty.flag(p.node)
	}
	return was
}

func (w *actualStateOfWorld) AddVolumeToReportAsAttached(volumeName v1.UniqueVolumeName, nodeName string) {
	// A volume that is gone by now is not to be reported.
	_ = w.change(volumeName, nodeName, w.report)
}

func (w *actualStateOfWorld) RemoveVolumeFromReportAsAttached(volumeName v1.UniqueVolumeName, nodeName string) error {
	was := false
	err := w.change(volumeName, nodeName, func(p *pair) { was = w.unreport(p) })
	if err == nil && !was {
		err = fmt.Errorf("volume %q is not reported as attached to node %q", volumeName, nodeName)
	}
	return err
}

func (w *actualStateOfWorld) SetNodeStatusUpdateNeeded(nodeName string) error {
	return w.changeReport(nodeName, w.dirty.flag)
}

func (w *actualStateOfWorld) ResetNodeStatusUpdateNeeded(nodeName string) error {
	return w.changeReport(nodeName, func(n *node) {
		// The flag may have been set since the report was taken. Only the seed
		// resets it for all that.
		if w.mode == Seed {
			w.dirty.unflag(n)
		}
	})
}

func (w *actualStateOfWorld) GetVolumesToReportAttached() map[string][]v1.AttachedVolume {
	if w.dirty.count.Load() == 0 {
		return nil // not an empty map: a tick should allocate nothing
	}
	if w.mode == Seed {
		w.volumes.rLockAll()
		defer w.volumes.rUnlockAll()
		return w.reports()
	}
	w.volumes.lockAll()
	defer w.volumes.unlockAll()
	defer w.dirty.unflagAll()
	return w.reports()
}

// reports must be called with all stripes locked.
func (w *actualStateOfWorld) reports() map[string][]v1.AttachedVolume {
	if len(w.dirty.list) == 0 {
		return nil
	}
	reports := make(map[string][]v1.AttachedVolume, len(w.dirty.list))
	for _, n := range w.dirty.list {
		reports[n.name] = n.report()
	}
	return reports
}

func (w *actualStateOfWorld) GetVolumesToReportAttachedForNode(nodeName string) (needed bool, list []v1.AttachedVolume) {
	// A node of which nothing is known does not have to be reported.
	_ = w.changeReport(nodeName, func(n *node) {
		if needed = n.flagged; needed {
			list = n.report()
			w.dirty.unflag(n)
		}
	})
	return needed, list
}
