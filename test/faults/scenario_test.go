package faults

import (
	"context"
	"slices"

	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// scenario is what is played once for each point.
type scenario struct {
	name string
	// of are the requests that it is made of, in any order.
	of []string
	// play goes from an idle world, with the trap set, to an idle world again.
	// name is of all it makes, and new in each play.
	play func(ctx context.Context, t *testing.T, w *world, name string)
	// dead is what happens between the death and the next process. Nil: nothing.
	dead func(ctx context.Context, w *world, name string) error
}

var scenarios = []scenario{
	{
		name: "attach and detach",
		of: []string{
			"patch persistentvolumes", "patch volumeattachments", "patch volumeattachments/status",
			"put volumeattachments", "put volumeattachments/status", "ControllerPublishVolume", "ControllerUnpublishVolume",
		},
		play: attachAndDetach,
	},
	{
		name: "fence",
		of: []string{
			"patch nodes", "patch volumeattachments", "patch pods/status", "post pods/eviction", "delete pods",
			"delete volumeattachments", "ControllerUnpublishVolume",
		},
		play: fence,
	},
	{name: "provision and delete", of: provisionRequests, play: provisionAndDelete},
	{name: "provision, claim deleted", of: provisionRequests, play: provisionAndDelete, dead: deleteClaim},
}

func (s scenario) has(p point) bool { return slices.Contains(s.of, p.What) }

// attachAndDetach makes a VolumeAttachment, and deletes it and then the
// PersistentVolume.
func attachAndDetach(ctx context.Context, t *testing.T, w *world, name string) {
	const node = "node-1"
	if _, err := w.NewVolume(ctx, name); err != nil {
		t.Fatal(err)
	}
	vas := w.Client.StorageV1().VolumeAttachments()
	_, err := vas.Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: rig.Driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, name+" is attached", func() bool {
		va := w.Attachment(name, node)
		return va != nil && va.Status.Attached
	})
	if err := vas.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, name+" is detached", func() bool { return w.Attachment(name, node) == nil })
	w.deleteVolume(ctx, t, name)
}

// deleteVolume deletes claim and PersistentVolume, and waits until our finalizer
// has let the latter go.
func (w *world) deleteVolume(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	for _, err := range []error{
		w.Client.CoreV1().PersistentVolumeClaims(rig.Namespace).Delete(ctx, name, metav1.DeleteOptions{}),
		w.Client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.await(ctx, t, name+" leaves no PersistentVolume", func() bool {
		_, err := w.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// fence runs a database on a node whose agent hangs in killing it, lets the node
// lose its volume, and waits until the database writes elsewhere.
func fence(ctx context.Context, t *testing.T, w *world, name string) {
	if _, err := w.NewVolume(ctx, name); err != nil {
		t.Fatal(err)
	}
	template, err := rig.WriterPod(name, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	first, err := w.RunStatefulSet(ctx, name, template)
	if err != nil {
		t.Fatal(err)
	}
	node := w.Nodes[slices.IndexFunc(w.Nodes, func(n *rig.Node) bool { return n.Name == first.Spec.NodeName })]
	if err := node.Agent.Inject(ctx, nodectl.HangKill); err != nil {
		t.Fatal(err)
	}
	if err := w.Driver.FailPath(ctx, state.VolumeID(name), node.Name); err != nil {
		t.Fatal(err)
	}
	second, err := w.AwaitRunning(ctx, first.Name, string(first.UID))
	if err != nil {
		t.Fatal(err)
	}
	if second.Spec.NodeName == node.Name {
		t.Fatalf("%s came back on %s", name, node.Name)
	}
	writer := string(second.UID) + "@" + second.Spec.NodeName
	w.await(ctx, t, name+" writes on "+second.Spec.NodeName, func() bool {
		lines, err := w.Lines(name)
		return err == nil && len(lines) > 0 && lines[len(lines)-1].Writer == writer
	})
	if _, err := w.CheckVolume(name, string(first.UID), string(second.UID)); err != nil {
		t.Errorf("W1, by what was written: %v", err)
	}
	for _, err := range []error{node.Agent.Release(ctx), w.Driver.HealPath(ctx, state.VolumeID(name), node.Name)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.await(ctx, t, "the hold comes off", func() bool {
		n := w.Node(node.Name)
		_, held := n.Annotations[volume.HoldKey(rig.Driver)]
		return !held && !slices.ContainsFunc(n.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == volume.HoldKey(rig.Driver) })
	})
	w.deleteDatabase(ctx, t, name)
}

func (w *world) deleteDatabase(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	background := metav1.DeletePropagationBackground
	if err := w.Client.AppsV1().StatefulSets(rig.Namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, name+" is gone", func() bool {
		for _, n := range w.Nodes {
			if w.Attachment(name, n.Name) != nil {
				return false
			}
		}
		return w.Pod(rig.Namespace, name+"-0") == nil
	})
	w.deleteVolume(ctx, t, name)
}
