package mount

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode/csinodetest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestAttachmentName(t *testing.T) {
	want := fmt.Sprintf("csi-%x", sha256.Sum256([]byte("handledrivernode")))
	if got := AttachmentName("driver", "handle", "node"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// mountInBackground starts a Mount and returns its result's channel.
func (r *rig) mountInBackground(ctx context.Context, pod *v1.Pod) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := r.Mount(ctx, pod)
		done <- err
	}()
	return done
}

func await(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the mount hangs")
		return nil
	}
}

func (r *rig) awaitReport() {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); len(r.reported()) == 0; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal("nothing was reported")
		}
	}
}

func TestMountFollowsTheAttachment(t *testing.T) {
	r := newRig(t)
	r.newVolume("v")
	done := r.mountInBackground(t.Context(), claimPod("a", "v"))
	r.awaitReport() // In use before it is attached.
	r.wantInUse("v")
	select {
	case err := <-done:
		t.Fatalf("mounted before attached: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.wantCalls()
	r.attach("v")
	began := time.Now()
	if err := await(t, done); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > nodePoll/2 {
		t.Errorf("the mount came %v after the attachment: by polling", took)
	}
}

func TestMountIsInterrupted(t *testing.T) {
	r := newRig(t)
	r.newVolume("v")
	ctx, cancel := context.WithCancel(t.Context())
	done := r.mountInBackground(ctx, claimPod("a", "v"))
	r.awaitReport()
	cancel()
	if err := await(t, done); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	r.mustUnmount("a")
	r.wantCalls()
	r.wantInUse()
}

// TestMountTrustsOnlyLiveReads: the watched Node and the VolumeAttachment may lie
// behind.
func TestMountTrustsOnlyLiveReads(t *testing.T) {
	name := AttachmentName(driverName, "v", nodeName)
	for what, tc := range map[string]struct {
		spoil func(r *rig)
		want  string
	}{
		"node lost the volume": {func(r *rig) {
			node := r.node.DeepCopy()
			node.Status.VolumesAttached = nil
			if _, err := r.client.CoreV1().Nodes().UpdateStatus(context.Background(), node, metav1.UpdateOptions{}); err != nil {
				r.t.Fatal(err)
			}
		}, "not attached to the node any more"},
		"attachment deleting": {func(r *rig) {
			r.setVA(name, func(va *storagev1.VolumeAttachment) {
				va.DeletionTimestamp, va.Finalizers = ptr.To(metav1.Now()), []string{"f"}
			})
		}, "is being deleted"},
		"attachment not attached": {func(r *rig) {
			r.setVA(name, func(va *storagev1.VolumeAttachment) { va.Status.Attached = false })
		}, "is not attached yet"},
		"attachment gone": {func(r *rig) {
			if err := r.client.StorageV1().VolumeAttachments().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				r.t.Fatal(err)
			}
		}, "not found"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, "v")
			r.cfg.AttachTimeout = 200 * time.Millisecond
			r.restart()
			tc.spoil(r)
			_, err := r.Mount(t.Context(), claimPod("a", "v"))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("mount: %v, want %q", err, tc.want)
			}
			r.wantCalls()
		})
	}
}

func (r *rig) setVA(name string, change func(*storagev1.VolumeAttachment)) {
	r.t.Helper()
	va, err := r.client.StorageV1().VolumeAttachments().Get(context.Background(), name, metav1.GetOptions{})
	if err == nil {
		change(va)
		_, err = r.client.StorageV1().VolumeAttachments().Update(context.Background(), va, metav1.UpdateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestUnattachableDriver(t *testing.T) {
	r := newRig(t)
	r.newVolume("v")
	r.driver.OnCall = nil
	r.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: ptr.To(false), PodInfoOnMount: ptr.To(true),
	}})
	r.mustMount(claimPod("a", "v"))
	r.wantInUse()
	publish := r.driver.Calls()[1].Request.(*csi.NodePublishVolumeRequest)
	if publish.GetVolumeContext()["csi.storage.k8s.io/pod.uid"] != "a" || publish.GetVolumeContext()["attr"] != "v" {
		t.Errorf("volume context: %v", publish.GetVolumeContext())
	}
	r.mustUnmount("a")
	r.wantCalls("Stage v", "Publish v", "Unpublish v", "Unstage v")
}

// TestNewUserDuringUnstage: a pod that claims the volume while its last user
// leaves stages it anew.
func TestNewUserDuringUnstage(t *testing.T) {
	r := newRig(t, "v")
	r.mustMount(claimPod("a", "v"))
	claimed, unstaging := make(chan struct{}), make(chan struct{})
	var onUnstage func()
	onUnstage = func() {
		onUnstage = func() {}
		close(unstaging)
		<-claimed
	}
	r.driver.OnCall = func(ctx context.Context, call csinodetest.Call) error {
		if call.Method == "Unstage" {
			onUnstage()
		}
		return r.checkInUse(ctx, call)
	}
	done := make(chan error, 1)
	go func() { done <- r.Unmount(context.Background(), "a") }()
	<-unstaging
	mounted := r.mountInBackground(t.Context(), claimPod("b", "v"))
	for len(r.Users()) < 2 {
		<-time.After(time.Millisecond)
	}
	close(claimed)
	if err := await(t, done); err != nil {
		t.Fatal(err)
	}
	if err := await(t, mounted); err != nil {
		t.Fatal(err)
	}
	r.wantCalls("Stage v", "Publish v", "Unpublish v", "Unstage v", "Stage v", "Publish v")
	r.wantInUse("v")
	r.restart()
	r.mustUnmount("b")
	r.wantInUse()
}

func TestSecrets(t *testing.T) {
	r := newRig(t, "v")
	pv, err := r.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv-v", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "s", Name: "stage"}
	if _, err := r.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Mount(t.Context(), claimPod("a", "v")); err == nil || !strings.Contains(err.Error(), "secret s/stage") {
		t.Errorf("a missing secret: %v", err)
	}
	r.wantCalls()
	r.create(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "s", Name: "stage"}, Data: map[string][]byte{"key": []byte("value")}})
	r.mustMount(claimPod("a", "v"))
	if got := r.driver.Calls()[0].Request.(*csi.NodeStageVolumeRequest).GetSecrets()["key"]; got != "value" {
		t.Errorf("secret: %q", got)
	}
}

func TestResolveRefuses(t *testing.T) {
	ctx := context.Background()
	changePV := func(change func(*v1.PersistentVolume)) func(*rig) {
		return func(r *rig) {
			pv, err := r.client.CoreV1().PersistentVolumes().Get(ctx, "pv-v", metav1.GetOptions{})
			if err == nil {
				change(pv)
				_, err = r.client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
			}
			if err != nil {
				r.t.Fatal(err)
			}
		}
	}
	for what, tc := range map[string]struct {
		prepare func(*rig)
		want    string
	}{
		"no claim": {func(r *rig) {
			_ = r.client.CoreV1().PersistentVolumeClaims("ns").Delete(ctx, "v", metav1.DeleteOptions{})
		}, "reading claim v"},
		"no volume":     {func(r *rig) { _ = r.client.CoreV1().PersistentVolumes().Delete(ctx, "pv-v", metav1.DeleteOptions{}) }, "reading volume pv-v"},
		"another claim": {changePV(func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "other" }), "not bound to claim"},
		"not CSI": {changePV(func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/x"}}
		}), "not a CSI volume"},
		"block":          {changePV(func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock) }), "block device"},
		"another driver": {changePV(func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other" }), "driver other is not registered"},
		"unbound": {func(r *rig) {
			claim, err := r.client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "v", metav1.GetOptions{})
			if err == nil {
				claim.Status.Phase = v1.ClaimPending
				_, err = r.client.CoreV1().PersistentVolumeClaims("ns").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
			}
			if err != nil {
				r.t.Fatal(err)
			}
		}, "not bound"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, "v")
			tc.prepare(r)
			if _, err := r.Mount(t.Context(), claimPod("a", "v")); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("mount: %v, want %q", err, tc.want)
			}
			if n := len(r.InUse()); n != 0 {
				t.Errorf("%d volumes in use", n)
			}
		})
	}
}

func TestEphemeralClaimMustBeThePods(t *testing.T) {
	r := newRig(t)
	pod := claimPod("a")
	pod.Spec.Volumes = []v1.Volume{{Name: "e", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
	r.newVolume("pod-a-e")
	r.attach("pod-a-e")
	if _, err := r.Mount(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "not made for this pod") {
		t.Fatalf("somebody else's claim: %v", err)
	}
	claim, err := r.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "pod-a-e", metav1.GetOptions{})
	if err == nil {
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
		_, err = r.client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.mustMount(pod)
	r.wantInUse(string(volume.Handle("pod-a-e")))
}
