package journal

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestServerThatFailsIsTold: whoever waits for a record hears of a server that
// fails on, as one whose webhook for ConfigMaps does not answer, and may come
// again. It must not wait for ever, without a word.
func TestServerThatFailsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		j, _, stop := open(t, config(a))
		var down atomic.Bool
		down.Store(true)
		a.before = func(*v1.ConfigMap) error {
			if down.Load() {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			return nil
		}
		put := make(chan error, 1)
		go func() { put <- j.Put(t.Context(), "a", "1") }()
		select {
		case err := <-put:
			if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
				t.Errorf("Put() = %v, want what the server says", err)
			}
		case <-time.After(2 * DefaultTimeout):
			t.Errorf("Put() still waits after %v", 2*DefaultTimeout)
			down.Store(false)
			<-put
		}
		down.Store(false)
		must(t, j.Put(t.Context(), "b", "2"))
		if diff := cmp.Diff(map[string]string{"b": "2"}, a.data()); diff != "" {
			t.Errorf("in the cluster (-want +got):\n%s", diff)
		}
		must(t, stop())
	})
}

// TestRemovalOutlastsAServerThatFails: it is written once the server lets us.
func TestRemovalOutlastsAServerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		j, _, stop := open(t, config(a))
		must(t, j.Put(t.Context(), "a", "1"))
		var down atomic.Bool
		down.Store(true)
		a.before = func(*v1.ConfigMap) error {
			if down.Load() {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			return nil
		}
		j.Remove("a")
		time.Sleep(10 * DefaultTimeout)
		down.Store(false)
		time.Sleep(2*DefaultRetryMax + DefaultRemoveWithin)
		synctest.Wait()
		if len(a.data()) != 0 {
			t.Errorf("in the cluster: %v", a.data())
		}
		must(t, stop())
	})
}
