package attach

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// An item whose backoff was ended and begun anew is due at the later of the two
// times, though the queue keeps the earlier: it must come then, and not be lost.
func TestBackoffBegunAnewIsKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLane("test", clock.RealClock{}, time.Second, time.Minute)
		l.open()
		defer l.shutDown()
		it := item{pv: "a"}
		l.retry(it) // due in about a second
		synctest.Wait()
		l.forget(it)
		l.retry(it)
		began := time.Now()
		l.retry(it) // due in about two
		got := make(chan item, 1)
		go func() {
			it, _ := l.get()
			got <- it
		}()
		select {
		case <-got:
			if d := time.Since(began); d < 1600*time.Millisecond || d > 2400*time.Millisecond {
				t.Errorf("the item came after %v, want about 2s", d)
			}
		case <-time.After(time.Hour):
			t.Error("the item never came")
		}
	})
}
