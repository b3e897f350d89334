package attach

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// inlineVA is a VolumeAttachment that has its volume written into it, as
// kube-controller-manager makes it for an in-tree volume of a pod.
func inlineVA(name, handle, node string) *storagev1.VolumeAttachment {
	a := va(name, "", node)
	a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: testDriver, VolumeHandle: handle, FSType: "xfs",
			ControllerPublishSecretRef: &v1.SecretReference{Namespace: "ns", Name: "s"},
		}},
	}}
	return a
}

func TestInlineVolume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"password": []byte("hunter2")}}
		r := newRig(newFakeDriver("h-inline"), objects(node("n1"), node("n2"), secret)...)
		r.run(t, func(t *testing.T) {
			r.api.add(inlineVA("va", "h-inline", "n1"))
			r.api.add(inlineVA("va2", "h-inline", "n2"))
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
			wantAttached(t, r, "va2", false) // the same volume, for one node only
			if got := r.driver.requests[0].VolumeCapability.GetMount().GetFsType(); got != "xfs" {
				t.Errorf("fsType %q", got)
			}
			r.restart()
			r.settle(time.Minute)
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-inline id-n1", "unpublish h-inline id-n1", "publish h-inline id-n2")
			for i, s := range r.driver.secrets {
				if s["password"] != "hunter2" {
					t.Errorf("call %d had no secret", i)
				}
			}
			if slices.Contains(r.driver.migrated, true) {
				t.Error("a call is told of as of a migrated volume")
			}
			if n := r.api.patched("persistentvolumes/"); n != 0 {
				t.Errorf("%d writes of PersistentVolumes", n)
			}
		})
	})
}

const gceDriver = "pd.csi.storage.gke.io"

// gcePV is a PersistentVolume of the in-tree plugin, migrated to CSI.
func gcePV(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/migrated-to": gceDriver}},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk", FSType: "ext4"}},
		},
	}
}

// migrated is a rig for the CSI driver of an in-tree plugin.
func migrated(d *fakeDriver, objs ...runtime.Object) *rig {
	r := comparing(d, func(cfg *Config) { cfg.DriverName, cfg.DetachOrphans = gceDriver, true }, objs...)
	r.api.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	n := csiNode("n1", "projects/p/zones/z/instances/n1")
	n.Spec.Drivers[0].Name = gceDriver
	r.api.add(n)
	return r
}

// EA217: a PersistentVolume of an in-tree plugin that was migrated is attached,
// detached and let go, and the driver's own form of its handle is understood.
func TestEA217_MigratedVolume(t *testing.T) {
	const handle, nodeID = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk", "projects/p/zones/z/instances/n1"
	bubble(t, func(t *testing.T) {
		d := newFakeDriver(handle)
		d.setList(func(_ context.Context, truth publications) (publications, error) {
			return publications{"projects/p/zones/z/disks/disk": truth[handle]}, nil
		})
		r := migrated(d, gcePV("pv"))
		r.run(t, func(t *testing.T) {
			a := va("va", "pv", "n1")
			a.Spec.Attacher = gceDriver
			r.api.add(a)
			r.settle(10 * time.Minute)
			wantAttached(t, r, "va", true)
			wantCalls(t, r, "publish "+handle+" "+nodeID)
			if f := r.api.pv("pv").Finalizers; !slices.Contains(f, FinalizerName(gceDriver)) {
				t.Errorf("finalizers %v", f)
			}
			d.alter("unpublish", handle, nodeID)
			r.settle(3 * DefaultEvidenceInterval)
			if !d.has(handle, nodeID) {
				t.Error("the handle that the driver lists is not understood")
			}
			r.api.remove(pvResource, "pv")
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			if len(d.migrated) < 2 || slices.Contains(d.migrated, false) {
				t.Errorf("of the calls %v are told of as of a migrated volume, want all", d.migrated)
			}
			if d.has(handle, nodeID) || r.api.pv("pv") != nil {
				t.Error("the volume, or its PersistentVolume, is still there")
			}
		})
	})
}

// What is nothing that CSI can attach is said so.
func TestSourcesThatAreNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		empty := va("empty", "", "n1")
		empty.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{}}
		empty.Spec.Attacher = gceDriver
		hostPath := gcePV("host")
		hostPath.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}
		onHost := va("host", "host", "n1")
		onHost.Spec.Attacher = gceDriver
		r := migrated(newFakeDriver(), hostPath)
		r.run(t, func(t *testing.T) {
			r.api.add(empty)
			r.api.add(onHost)
			r.settle(time.Hour)
			for name, want := range map[string]string{"empty": "names no CSI volume", "host": "not a CSI volume"} {
				if e := r.api.va(name).Status.AttachError; e == nil || !strings.Contains(e.Message, want) {
					t.Errorf("%s: attachError %v, want %q", name, e, want)
				}
			}
			wantCalls(t, r, "")
		})
	})
}

// A handle of another form than the translation's is the driver's own.
func TestListedAs(t *testing.T) {
	c := &Controller{cfg: Config{DriverName: gceDriver}}
	for handle, want := range map[volume.Handle]volume.Handle{
		"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d": "projects/p/zones/z/disks/d",
		"projects/q/zones/y/disks/d":                     "projects/q/zones/y/disks/d",
		"d":                                              "d",
	} {
		if got := c.listedAs(handle, "projects/p/zones/z/instances/n1"); got != want {
			t.Errorf("%s is listed as %s, want %s", handle, got, want)
		}
	}
	c.cfg.DriverName = testDriver
	if got := c.listedAs("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "n"); !strings.Contains(string(got), "UNSPECIFIED") {
		t.Errorf("another driver's handle is taken for %s", got)
	}
}
