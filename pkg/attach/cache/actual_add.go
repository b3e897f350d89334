package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func (w *actualStateOfWorld) AddVolumeNode(volumeSpec *volume.Spec, nodeName string, devicePath string) (v1.UniqueVolumeName, error) {
	return w.AddVolumeNodeAs("", volumeSpec, nodeName, devicePath, true)
}

func (w *actualStateOfWorld) MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, volumeSpec *volume.Spec, nodeName string, devicePath string) error {
	if w.mode == Seed {
		volumeName = "" // the seed asks the plugin, whatever the name
	}
	_, err := w.AddVolumeNodeAs(volumeName, volumeSpec, nodeName, devicePath, true)
	return err
}

func (w *actualStateOfWorld) MarkVolumeAsUncertain(volumeName v1.UniqueVolumeName, volumeSpec *volume.Spec, nodeName string) error {
	_, err := w.AddVolumeNodeAs(volumeName, volumeSpec, nodeName, "", false)
	return err
}

func (w *actualStateOfWorld) AddVolumeNodeAs(volumeName v1.UniqueVolumeName, volumeSpec *volume.Spec, nodeName string, devicePath string, attached bool) (v1.UniqueVolumeName, error) {
	if volumeName == "" {
		var err error
		if volumeName, err = w.plugins.UniqueVolumeName(volumeSpec); err != nil {
			return "", err
		}
	}
	w.add(&pair{
		node: w.nodeOf(nodeName), volume: volumeName, spec: volumeSpec, devicePath: devicePath, confirmed: attached,
	})
	return volumeName, nil
}

// add records a pair as it is now, in place of what was known of it.
func (w *actualStateOfWorld) add(now *pair) {
	s := w.volumes.of(now.volume)
	s.Lock()
	defer s.Unlock()
	at := s.m[now.volume]
	p := at.on(now.node.name)
	isNew := p == nil
	if isNew {
		p = now
		p.volume = at.name(p.volume)
	}

	// The seed knows one spec and one device path for all nodes of a volume.
	buf := [1]*pair{p}
	touched := buf[:]
	if w.mode == Seed && (at.more != nil || isNew && at.one != nil) {
		touched = at.inOrder(p, nil)
	}
	for _, t := range touched {
		t.node.mu.Lock()
	}
	if isNew {
		w.place(p)
	}
	for _, t := range touched {
		if w.mode == Seed || t == p {
			t.update(now)
		}
	}
	p.confirmed = now.confirmed
	if p.confirmed {
		w.report(p)
	}
	for _, t := range touched {
		t.node.mu.Unlock()
	}
	if isNew {
		s.m[p.volume] = at.with(p)
	}
}

// update takes over what was told anew. Where only the name was told, the spec
// known so far is still the best there is.
func (p *pair) update(now *pair) {
	p.devicePath = now.devicePath
	if now.spec != nil {
		p.spec = now.spec
	}
}

// place puts a new pair on its node. The seed takes it for mounted until the
// node says otherwise. Modern goes by the node's list: a kubelet lists a volume
// before it mounts it, and until it is unmounted.
func (w *actualStateOfWorld) place(p *pair) {
	n := p.node
	n.insert(p)
	if w.mode == Seed {
		p.mounted = true
		return
	}
	if _, ok := n.inUse[p.volume]; ok {
		p.mounted, p.claimed = true, true
		delete(n.inUse, p.volume)
	}
}

func (w *actualStateOfWorld) MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName string) {
	w.DeleteVolumeNode(volumeName, nodeName)
}

func (w *actualStateOfWorld) DeleteVolumeNode(volumeName v1.UniqueVolumeName, nodeName string) {
	s := w.volumes.of(volumeName)
	s.Lock()
	defer s.Unlock()
	at := s.m[volumeName]
	p := at.on(nodeName)
	if p == nil {
		return
	}
	w.displace(p)
	if at = at.without(p); at.empty() {
		delete(s.m, volumeName)
	} else {
		s.m[volumeName] = at
	}
}

// displace takes a pair off its node and its report. What the node's list says
// outlives the pair.
func (w *actualStateOfWorld) displace(p *pair) {
	n := p.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(p)
	w.unreport(p)
	if w.mode == Modern && p.claimed {
		if n.inUse == nil {
			n.inUse = map[v1.UniqueVolumeName]struct{}{}
		}
		n.inUse[p.volume] = struct{}{}
	}
}
