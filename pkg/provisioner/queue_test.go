package provisioner

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	"pgregory.net/rapid"
)

// newTestQueue is a queue whose keys are taken by the test.
func newTestQueue(pause func(int) time.Duration) *queue {
	return newQueue("", clock.RealClock{}, pause)
}

// got takes what is there now; work is done with it before it is handed back.
func got(q *queue, work func(key string)) (keys []string) {
	synctest.Wait()
	for q.Len() > 0 {
		key, _ := q.Get()
		if q.take(key) {
			keys = append(keys, key)
			if work != nil {
				work(key)
			}
		}
		q.Done(key)
		synctest.Wait()
	}
	return keys
}

// TestQueue: what ends a backoff, and what does not.
func TestQueue(t *testing.T) {
	constant := func(int) time.Duration { return time.Minute }
	fails := func(q *queue) func(string) { return func(key string) { q.fail(key, 0) } }
	for name, c := range map[string]struct {
		// step is done in the middle of the backoff of a key.
		step func(q *queue)
		// soon and late are how often it is handed out after that, and after the
		// backoff.
		soon, late int
	}{
		"nothing: its time comes":                    {step: func(*queue) {}, late: 1},
		"add does not shorten it":                    {step: func(q *queue) { q.add("a") }, late: 1},
		"renew ends it":                              {step: func(q *queue) { q.renew("a") }, soon: 1, late: 1},
		"renew and forget: the timer runs out still": {step: func(q *queue) { q.renew("a"); q.forget("a") }, soon: 1, late: 1},
		"Add by another way does not shorten it":     {step: func(q *queue) { q.Add("a") }, late: 1},
		"later in its place":                         {step: func(q *queue) { q.later("a", time.Second) }, late: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue(constant)
				defer q.ShutDown()
				q.add("a")
				if n := len(got(q, fails(q))); n != 1 {
					t.Fatalf("handed out %d times", n)
				}
				time.Sleep(30 * time.Second)
				c.step(q)
				if n := len(got(q, nil)); n != c.soon {
					t.Errorf("handed out %d times within the backoff, want %d", n, c.soon)
				}
				time.Sleep(time.Minute)
				if n := len(got(q, nil)); n != c.late {
					t.Errorf("handed out %d times after the backoff, want %d", n, c.late)
				}
			})
		})
	}
}

// TestRenewedWhileWorkedOn: the failure of an attempt that did not see the change
// says nothing of it.
func TestRenewedWhileWorkedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(func(int) time.Duration { return time.Hour })
		defer q.ShutDown()
		q.add("a")
		n := 0
		keys := got(q, func(key string) {
			if n++; n == 1 {
				q.renew(key)
				if d := q.fail(key, time.Hour); d != 0 {
					t.Errorf("pause %v", d)
				}
			}
		})
		if len(keys) != 2 || q.failed("a") != 0 {
			t.Errorf("handed out %d times, failed %d times", len(keys), q.failed("a"))
		}
	})
}

// TestTimerOfAnEarlierBackoff: it runs out within a later one, which counts.
func TestTimerOfAnEarlierBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		q := newTestQueue(func(int) time.Duration { return time.Minute })
		defer q.ShutDown()
		q.add("a")
		got(q, func(key string) { q.fail(key, 0) })
		q.renew("a")
		got(q, func(key string) { q.fail(key, time.Hour) })
		for time.Since(began) < time.Hour {
			if n := len(got(q, nil)); n > 0 {
				t.Fatalf("handed out after %v", time.Since(began))
			}
			time.Sleep(time.Minute)
		}
		if n := len(got(q, nil)); n != 1 {
			t.Errorf("handed out %d times after the longer backoff", n)
		}
	})
}

// TestPauses: they double up to the longest, and jitter adds at most a fifth.
func TestPauses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "first"))
		longest := first + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "more"))
		least := time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "least"))
		pause := exponential(first, longest)
		q := newTestQueue(pause)
		defer q.ShutDown()
		for failures := 1; failures < 40; failures++ {
			want := pause(failures)
			if want < first || want > longest || failures == 1 && want != first || failures > 1 && want < min(2*pause(failures-1), longest) {
				t.Fatalf("pause %d is %v, of %v to %v", failures, want, first, longest)
			}
			d := q.fail("a", least)
			if d < max(want, least) || d > max(time.Duration(float64(want)*(1+jitter)), least) || q.failed("a") != failures {
				t.Fatalf("pause %d is %v, want %v, at least %v, with a jitter of %v", failures, d, want, least, jitter)
			}
		}
		if pause(1<<20) != longest {
			t.Fatalf("pause in the end is %v, want %v", pause(1<<20), longest)
		}
	})
}

// TestQueueIsFair: whatever happens, no key is handed out within its backoff
// unless it was renewed, and none is lost.
func TestQueueIsFair(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"add", "fail", "renew", "renew and fail", "renew and be refused"}), 1, 40).Draw(rt, "steps")
		naps := rapid.SliceOfN(rapid.IntRange(0, 90), len(steps), len(steps)).Draw(rt, "naps")
		fault := ""
		synctest.Test(t, func(*testing.T) { fault = playQueue(steps, naps) })
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

// playQueue plays steps on one key with naps of so many seconds in between. It
// returns what was wrong.
func playQueue(steps []string, naps []int) (fault string) {
	q := newTestQueue(exponential(10*time.Second, time.Minute))
	defer q.ShutDown()
	var due time.Time // zero: there is no backoff
	serve := func(fails bool, least time.Duration) {
		for range got(q, func(key string) {
			if time.Now().Before(due) {
				fault = fmt.Sprintf("handed out %v before its time", time.Until(due))
			}
			due = time.Time{}
			if fails {
				fails = false
				due = time.Now().Add(q.fail(key, least))
			}
		}) {
			continue
		}
		if !due.IsZero() && !time.Now().Before(due) {
			fault = fmt.Sprintf("not handed out %v after its time", time.Since(due))
		}
	}
	for i, step := range steps {
		if strings.HasPrefix(step, "renew") {
			q.renew("a")
			due = time.Time{}
		} else {
			q.add("a")
		}
		switch step {
		case "fail", "renew and fail":
			serve(true, 0)
		case "renew and be refused":
			serve(true, 2*time.Minute)
		default:
			serve(false, 0)
		}
		for range naps[i] {
			time.Sleep(time.Second)
			serve(false, 0)
		}
	}
	time.Sleep(10 * time.Minute)
	serve(false, 0)
	return fault
}
