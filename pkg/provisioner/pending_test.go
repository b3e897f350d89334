package provisioner

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// TestPending: what is in the background or unsaved is told with its last failure,
// whatever became of the claim, until it is over.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		m := &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			if o.PVC.Name == "fine" {
				return nfsVolume(o), ProvisioningFinished, nil
			}
			if o.PVC.Name == "refused" {
				return nil, ProvisioningFinished, errors.New("no")
			}
			return nil, ProvisioningInBackground, errors.New("the driver is slow")
		}}
		w := newWorld(t, setup{
			objects: []runtime.Object{
				storageClass("class-1", ourName), claim("slow", "uid-1", "class-1", ourName), claim("fine", "uid-2", "class-1", ourName), claim("refused", "uid-3", "class-1", ourName),
			},
			maker: m, noResync: true, exponential: true, before: failing("create", "persistentvolumes", 0),
			options: []Option{WithRetryInterval(time.Second, time.Second), WithoutRetryLimit()},
		})
		w.rest(1)
		want := []Pending{
			{Claim: "default/fine", UID: "uid-2", PersistentVolume: "pvc-uid-2", State: PendingUnsaved, Failures: 1, LastFailure: "saving PersistentVolume pvc-uid-2: fake error; the volume exists, and saving it is tried again"},
			{Claim: "default/slow", UID: "uid-1", PersistentVolume: "pvc-uid-1", State: PendingBackground, Failures: 1, LastFailure: `failed to provision volume with StorageClass "class-1": the driver is slow`},
		}
		compare := func() {
			t.Helper()
			if diff := cmp.Diff(want, w.ctrl.Pending(), cmpopts.IgnoreTypes(time.Time{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		compare()
		since := w.ctrl.Pending()[1].Since
		if since.Before(start) || time.Since(since) > time.Second {
			t.Errorf("since %v", since)
		}
		if err := w.client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "slow", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, p := range w.ctrl.Pending() {
			if p.Failures < 20 || time.Since(p.LastFailureAt) > 2*time.Second {
				t.Errorf("after a minute: %+v", p)
			}
		}
		m.mu.Lock()
		m.provision = func(VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			panic("the provisioner is broken")
		}
		m.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := w.ctrl.Pending()[1]; !got.Since.Equal(since) || got.State != PendingBackground || got.LastFailure != "it panicked: see the log" {
			t.Errorf("after a panic: %+v", got)
		}
		// It comes to its end, and the other does with it.
		m.mu.Lock()
		m.provision = func(VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			return nil, ProvisioningFinished, errors.New("there is no such volume")
		}
		m.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := w.ctrl.Pending(); len(got) != 1 || got[0].UID != "uid-2" {
			t.Errorf("what has ended is still there: %+v", got)
		}
		if n := len(w.ctrl.ops.problems); n != 1 {
			t.Errorf("%d failures are remembered", n)
		}
	})
}

// TestPendingIsSorted by age, then by claim.
func TestPendingIsSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := []*v1.PersistentVolumeClaim{claim("b", "uid-1", "class-1", ourName), claim("a", "uid-2", "class-1", ourName), claim("a", "uid-0", "class-1", ourName)}
		m := &maker{begun: begun, provision: func(VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			return nil, ProvisioningInBackground, errFake
		}}
		w := newWorld(t, setup{objects: []runtime.Object{storageClass("class-1", ourName)}, maker: m, noResync: true})
		w.rest(1)
		m.later(claim("0", "uid-3", "class-1", ourName))
		w.rest(1)
		var got []types.UID
		for _, p := range w.ctrl.Pending() {
			got = append(got, p.UID)
		}
		if diff := cmp.Diff([]types.UID{"uid-0", "uid-2", "uid-1", "uid-3"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestLongFailureIsCut(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("x", maxFailure), strings.Repeat("ü", maxFailure), "x" + strings.Repeat("ü", maxFailure)} {
		got := cut(text)
		if len(got) > maxFailure+3 || !utf8.ValidString(got) || !strings.HasPrefix(text, strings.TrimSuffix(got, "...")) {
			t.Errorf("cut(%d bytes) is %d bytes: %q", len(text), len(got), got)
		}
		if len(text) <= maxFailure && got != text {
			t.Errorf("cut(%q) = %q", text, got)
		}
	}
}
