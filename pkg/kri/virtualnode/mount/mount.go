package mount

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
)

// Mount gives the pod all its volumes and returns their paths by the pod's own
// names. It may be called again: what is published is left alone. On an error
// the volumes stay in use until Unmount.
func (m *Manager) Mount(ctx context.Context, pod *v1.Pod) (map[string]string, error) {
	paths := map[string]string{}
	var reqs []*request
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		path, local, err := m.local(pod.UID, vol)
		if err != nil {
			return nil, err
		}
		if !local {
			path = m.published(pod, vol.Name)
		}
		if path != "" {
			paths[vol.Name] = path
			continue
		}
		req, err := m.resolve(ctx, pod, vol)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", vol.Name, err)
		}
		reqs = append(reqs, req)
	}
	entries := make([]*entry, len(reqs))
	for i, req := range reqs {
		entries[i] = m.claim(pod.UID, m.newRecord(req))
	}
	if err := m.report(ctx); err != nil {
		return nil, err
	}
	for i, req := range reqs {
		path, err := m.mountOne(ctx, entries[i], req)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", req.name, err)
		}
		paths[req.name] = path
	}
	return paths, nil
}

// published returns the path of a volume that the pod already has.
func (m *Manager) published(pod *v1.Pod, name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if pub, ok := e.rec.Publications[pod.UID]; ok && pub.Name == name && pub.Published {
			return pub.Path
		}
	}
	return ""
}

func (m *Manager) newRecord(req *request) *record {
	rec := &record{Driver: req.driver.Name, Handle: req.handle(), PV: req.pv.Name, NotAttachable: !req.attachable()}
	if req.driver.Has(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		rec.StagingPath = filepath.Join(m.volumeDir(rec.Driver, rec.Handle), "globalmount")
	}
	return rec
}

func (m *Manager) mountOne(ctx context.Context, e *entry, req *request) (string, error) {
	var publishContext map[string]string
	if req.attachable() {
		var err error
		if publishContext, err = m.awaitAttached(ctx, req); err != nil {
			return "", err
		}
	}
	if err := e.lock(ctx); err != nil {
		return "", err
	}
	defer e.unlock()
	if err := m.stage(ctx, e, req, publishContext); err != nil {
		return "", err
	}
	return m.publish(ctx, e, req, publishContext)
}

// stage calls NodeStageVolume, once for all pods.
func (m *Manager) stage(ctx context.Context, e *entry, req *request, publishContext map[string]string) error {
	if e.rec.StagingPath == "" || e.rec.Staged {
		return nil
	}
	secrets, err := m.secret(ctx, req.source().NodeStageSecretRef)
	if err != nil {
		return err
	}
	if err := m.update(e, func(r *record) { r.PublishContext = publishContext }); err != nil {
		return err
	}
	if err := os.MkdirAll(e.rec.StagingPath, 0o750); err != nil {
		return fmt.Errorf("making the staging path: %w", err)
	}
	err = req.driver.Stage(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: string(req.handle()), PublishContext: publishContext, StagingTargetPath: e.rec.StagingPath,
		VolumeCapability: capability(req), Secrets: secrets, VolumeContext: req.source().VolumeAttributes,
	})
	if err != nil {
		return err
	}
	return m.update(e, func(r *record) { r.Staged = true })
}

func (m *Manager) publish(ctx context.Context, e *entry, req *request, publishContext map[string]string) (string, error) {
	uid := req.pod.UID
	secrets, err := m.secret(ctx, req.source().NodePublishSecretRef)
	if err != nil {
		return "", err
	}
	// The driver makes the last element of the path itself.
	path := filepath.Join(m.podVolumesDir(uid), "kubernetes.io~csi", req.pv.Name, "mount")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", fmt.Errorf("making the target path: %w", err)
	}
	pub := publication{Name: req.name, Path: path}
	if err := m.update(e, func(r *record) { r.Publications[uid] = pub }); err != nil {
		return "", err
	}
	err = req.driver.Publish(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: string(req.handle()), PublishContext: publishContext, StagingTargetPath: e.rec.StagingPath,
		TargetPath: path, VolumeCapability: capability(req), Readonly: req.readOnly,
		Secrets: secrets, VolumeContext: volumeContext(req),
	})
	if err != nil {
		return "", err
	}
	pub.Published = true
	if err := m.update(e, func(r *record) { r.Publications[uid] = pub }); err != nil {
		return "", err
	}
	return path, nil
}
