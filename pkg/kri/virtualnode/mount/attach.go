package mount

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Attachments are looked at again when the Node changes. These intervals only
// matter for what no event tells: a VolumeAttachment that lags behind the Node,
// and a Node event that never came.
const (
	attachmentPoll = 50 * time.Millisecond
	attachmentMax  = time.Second
	nodePoll       = 5 * time.Second
)

// AttachmentName is the name of the VolumeAttachment that kube-controller-manager
// makes for a volume on a node.
func AttachmentName(driver string, handle volume.Handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(handle)+driver+node)))
}

// awaitAttached returns the metadata of the volume's VolumeAttachment, once the
// node is told that it is attached and the attachment is there to stay. The
// caller has reported the volume as in use before.
func (m *Manager) awaitAttached(ctx context.Context, req *request) (map[string]string, error) {
	deadline := m.cfg.Clock.NewTimer(m.cfg.AttachTimeout)
	defer deadline.Stop()
	unique := volume.UniqueName(req.driver.Name, req.handle())
	poll, last := attachmentPoll, error(nil)
	for {
		node, changed := m.cfg.Watcher.Node()
		wait := nodePoll
		if node != nil && listsAttached(node, unique) {
			va, err := m.attachment(ctx, req, unique)
			if err == nil {
				return va.Status.AttachmentMetadata, nil
			}
			last, wait = err, poll
			poll = min(2*poll, attachmentMax)
		}
		timer := m.cfg.Clock.NewTimer(wait)
		select {
		case <-changed:
			timer.Stop()
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-deadline.C():
			timer.Stop()
			return nil, attachTimeout(req, last)
		}
	}
}

func attachTimeout(req *request, last error) error {
	if last != nil {
		return fmt.Errorf("timed out waiting for volume %s to be attached: %w", req.pv.Name, last)
	}
	return fmt.Errorf("timed out waiting for volume %s to be attached", req.pv.Name)
}

// attachment reads Node and VolumeAttachment live. The watched Node may be
// older than our own report of the volume; only one that is newer proves that
// kube-controller-manager has to see the report before it detaches.
func (m *Manager) attachment(ctx context.Context, req *request, unique v1.UniqueVolumeName) (*storagev1.VolumeAttachment, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.APITimeout)
	defer cancel()
	node, err := m.cfg.Client.CoreV1().Nodes().Get(ctx, m.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the node: %w", err)
	}
	if !listsAttached(node, unique) {
		return nil, fmt.Errorf("volume %s is not attached to the node any more", req.pv.Name)
	}
	name := AttachmentName(req.driver.Name, req.handle(), m.cfg.NodeName)
	va, err := m.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the attachment of volume %s: %w", req.pv.Name, err)
	}
	switch {
	case va.DeletionTimestamp != nil:
		return nil, fmt.Errorf("the attachment of volume %s is being deleted", req.pv.Name)
	case !va.Status.Attached:
		return nil, fmt.Errorf("volume %s is not attached yet", req.pv.Name)
	}
	return va, nil
}

func listsAttached(node *v1.Node, unique v1.UniqueVolumeName) bool {
	for i := range node.Status.VolumesAttached {
		if node.Status.VolumesAttached[i].Name == unique {
			return true
		}
	}
	return false
}
