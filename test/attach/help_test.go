package attach

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

var finalizer = attach.FinalizerName(rig.Driver)

// bounded is a context for one test.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), caseBound, fmt.Errorf("it took longer than %v", caseBound))
	t.Cleanup(cancel)
	return ctx
}

// cleanup runs f after the test, with a context of its own.
func cleanup(t *testing.T, f func(ctx context.Context)) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), caseBound)
		defer cancel()
		f(ctx)
	})
}

func (w *world) await(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	if err := w.Await(ctx, what, holds); err != nil {
		t.Fatal(err)
	}
}

func capacity() *resource.Quantity { return resource.NewQuantity(1<<20, resource.BinarySI) }

// handle is the driver's ID of the volume of that name.
func handle(name string) string { return state.VolumeID(name) }

// volume makes a volume at the driver and a PersistentVolume without a claim.
func (w *world) volume(ctx context.Context, t *testing.T, name string, changes ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	t.Helper()
	if _, err := w.Driver.CreateVolume(ctx, name, 1<<20); err != nil {
		t.Fatal(err)
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			Capacity: v1.ResourceList{v1.ResourceStorage: *capacity()},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: rig.Driver, VolumeHandle: handle(name),
			}},
		},
	}
	for _, change := range changes {
		change(pv)
	}
	pv, err := w.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, func(ctx context.Context) {
		if err := w.Client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return pv
}

func (w *world) pv(ctx context.Context, t *testing.T, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := w.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

// attachment makes a VolumeAttachment, as kube-controller-manager would, which is
// gone again after the test.
func (w *world) attachment(ctx context.Context, t *testing.T, name, pv, node string, changes ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	t.Helper()
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: rig.Driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
	for _, change := range changes {
		change(va)
	}
	va, err := w.Client.StorageV1().VolumeAttachments().Create(ctx, va, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, func(ctx context.Context) {
		if err := w.Client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		w.gone(ctx, t, name)
	})
	return va
}

// attached makes one and waits until it is attached.
func (w *world) attached(ctx context.Context, t *testing.T, name, pv, node string) *storagev1.VolumeAttachment {
	t.Helper()
	w.attachment(ctx, t, name, pv, node)
	return w.awaitAttached(ctx, t, name)
}

func (w *world) awaitAttached(ctx context.Context, t *testing.T, name string) (va *storagev1.VolumeAttachment) {
	t.Helper()
	w.await(ctx, t, name+" is attached", func() bool {
		va = w.AttachmentNamed(name)
		return va != nil && va.Status.Attached
	})
	return va
}

// status is that of a VolumeAttachment, zero while there is none.
func (w *world) status(name string) (status storagev1.VolumeAttachmentStatus) {
	if va := w.AttachmentNamed(name); va != nil {
		status = va.Status
	}
	return status
}

func says(e *storagev1.VolumeError, text string) bool {
	return e != nil && strings.Contains(e.Message, text)
}

// remove deletes a VolumeAttachment and does not wait.
func (w *world) remove(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if err := w.Client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) gone(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	var va *storagev1.VolumeAttachment
	if err := w.Await(ctx, name+" is gone", func() bool { va = w.AttachmentNamed(name); return va == nil }); err != nil {
		t.Errorf("%v: finalizers %v, detachError %v", err, va.Finalizers, va.Status.DetachError)
	}
}

// strip takes all finalizers off by hand.
func (w *world) strip(ctx context.Context, t *testing.T, what, name string) {
	t.Helper()
	patch, none := []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}
	var err error
	if what == "pv" {
		_, err = w.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, none)
	} else {
		_, err = w.Client.StorageV1().VolumeAttachments().Patch(ctx, name, types.MergePatchType, patch, none)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// inject makes calls go wrong until the test ends, or clear is called.
func (w *world) inject(ctx context.Context, t *testing.T, f simctl.Fault) (id string, clear func()) {
	t.Helper()
	id, err := w.Driver.Inject(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	cleared := false
	clear = func() {
		if cleared {
			return
		}
		cleared = true
		ctx, cancel := context.WithTimeout(context.Background(), caseBound)
		defer cancel()
		if err := w.Driver.Clear(ctx, id); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(clear)
	return id, clear
}

func (w *world) hits(ctx context.Context, t *testing.T, id string, n int) {
	t.Helper()
	if _, err := w.Driver.AwaitHits(ctx, id, n); err != nil {
		t.Fatal(err)
	}
}

// lists waits for so many further lists of the driver's to end: the sidecar has
// compared, and whatever loops has had its time.
func (w *world) lists(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	began := time.Now()
	w.await(ctx, t, "the driver was asked for its list", func() bool {
		later := slices.DeleteFunc(w.wire.of(list, ""), func(c call) bool { return c.Began.Before(began) || c.Ended.IsZero() })
		return len(later) >= n
	})
}

// writes counts the requests of ha-sidecar that changed the object, or tried to.
func (w *world) writes(t *testing.T, resource, name string) (n int) {
	t.Helper()
	requests, err := w.Requests()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range requests {
		if q.Resource == resource && q.Name == name && q.Verb != "get" {
			n++
		}
	}
	return n
}

// published are the nodes that the driver has the volume on.
func (w *world) published(ctx context.Context, t *testing.T, volume string) (nodes []string) {
	t.Helper()
	all, err := w.Driver.Publications(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Volume == volume {
			nodes = append(nodes, p.Node)
		}
	}
	return nodes
}

// wantStory compares the calls for a volume so far.
func (w *wire) wantStory(t *testing.T, volume, want string) {
	t.Helper()
	if got := w.story(volume); got != want {
		t.Errorf("calls for %s: %q, want %q", volume, got, want)
	}
}

// wantBackoff holds that the pauses between calls that failed grow as they are
// to: a fifth less at most.
func wantBackoff(t *testing.T, calls []call) {
	t.Helper()
	least := retryStart
	for i := 1; i < len(calls); i++ {
		if pause := calls[i].Began.Sub(calls[i-1].Ended); pause < least*4/5 {
			t.Errorf("attempt %d came %v after the one before, want at least %v", i+1, pause, least*4/5)
		}
		least *= 2
	}
}

// counted is the sum of a metric's samples whose labels match.
func counted(s *rig.Sidecar, metric, labels string) (sum float64) {
	body, err := s.Body("/metrics")
	if err != nil {
		return -1
	}
	for _, m := range regexp.MustCompile(`(?m)^`+metric+`(?:\{([^}]*)\})? (\S+)$`).FindAllStringSubmatch(body, -1) {
		if value, err := strconv.ParseFloat(m[2], 64); err == nil && regexp.MustCompile(labels).MatchString(m[1]) {
			sum += value
		}
	}
	return sum
}
