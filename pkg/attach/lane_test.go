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
		ls := newLanes(clock.RealClock{}, time.Second, time.Minute)
		ls.open()
		defer ls.shutDown()
		it := item{pv: "a"}
		ls.fail(ls.attach, it, time.Minute) // due in about a second
		synctest.Wait()
		ls.forget(it)
		ls.fail(ls.attach, it, time.Minute)
		began := time.Now()
		ls.fail(ls.attach, it, time.Minute) // due in about two
		got := make(chan item, 1)
		go func() {
			it, _ := ls.attach.retry.get()
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
