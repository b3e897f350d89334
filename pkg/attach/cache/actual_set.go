package cache

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

func (w *actualStateOfWorld) SetVolumeMountedByNode(volumeName v1.UniqueVolumeName, nodeName string, mounted bool) error {
	return w.change(volumeName, nodeName, func(p *pair) {
		switch {
		case w.mode == Modern:
			p.mounted, p.claimed = mounted, p.claimed && mounted
		case mounted:
			p.mounted, p.claimed = true, true
		case p.claimed:
			p.mounted = false
		}
	})
}

func (w *actualStateOfWorld) SetVolumesMountedByNode(volumeNames []v1.UniqueVolumeName, nodeName string) {
	n, ok := w.nodes.get(nodeName)
	if !ok {
		if w.mode == Seed || len(volumeNames) == 0 {
			return
		}
		n = w.nodeOf(nodeName)
	}
	said := make(map[v1.UniqueVolumeName]struct{}, len(volumeNames))
	for _, name := range volumeNames {
		said[name] = struct{}{}
	}
	defer w.lockNode(n)()
	for _, p := range n.pairs {
		_, p.mounted = said[p.volume]
		p.claimed = p.mounted || w.mode == Seed && p.claimed
		delete(said, p.volume)
	}
	if n.inUse = nil; w.mode == Modern && len(said) > 0 {
		n.inUse = said
	}
}

func (w *actualStateOfWorld) SetDetachRequestTime(volumeName v1.UniqueVolumeName, nodeName string) (elapsed time.Duration, err error) {
	err = w.change(volumeName, nodeName, func(p *pair) {
		since := max(w.clock.Since(w.start), 0)
		if p.detachAt == 0 {
			p.detachAt = int64(since) + 1
		}
		elapsed = since - time.Duration(p.detachAt-1)
	})
	return elapsed, err
}

// detachRequestedTime is zero if there is no request.
func (w *actualStateOfWorld) detachRequestedTime(p *pair) time.Time {
	if p.detachAt == 0 {
		return time.Time{}
	}
	return w.start.Add(time.Duration(p.detachAt - 1))
}

func (w *actualStateOfWorld) ResetDetachRequestTime(volumeName v1.UniqueVolumeName, nodeName string) {
	// Without the pair there is no request either.
	_ = w.change(volumeName, nodeName, func(p *pair) { p.detachAt = 0 })
}
