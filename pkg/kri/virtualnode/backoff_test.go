package virtualnode

import (
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/process"
)

func TestRestartDelay(t *testing.T) {
	want := []float64{0, 0, 10, 20, 40, 80, 160, 300, 300}
	for crashes, seconds := range want {
		if got := restartDelay(crashes, 10*time.Second, 300*time.Second).Seconds(); got != seconds {
			t.Errorf("after %d crashes: %vs, want %vs", crashes, got, seconds)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 10000).Draw(t, "crashes")
		base := time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "base"))
		a, b := restartDelay(n, base, time.Hour), restartDelay(n+1, base, time.Hour)
		if a > b || b > time.Hour || a < 0 {
			t.Fatalf("delays %v, %v", a, b)
		}
	})
}

func TestRetryDelay(t *testing.T) {
	if got := retryDelay(1); got != 250*time.Millisecond {
		t.Errorf("first: %v", got)
	}
	if got := retryDelay(100); got != 10*time.Second {
		t.Errorf("last: %v", got)
	}
}

func TestRestarts(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := testingclock.NewFakePassiveClock(now)
	r := newRestarts(clock, 10*time.Second, 300*time.Second)
	id := process.ID{Pod: "p", Name: "c"}
	remaining := func(attempt int, ran time.Duration) time.Duration {
		return r.remaining(id, attempt, clock.Now().Add(-ran), clock.Now())
	}
	for attempt, want := range []time.Duration{0, 10 * time.Second, 20 * time.Second} {
		for range 3 { // Asking does not count.
			if got := remaining(attempt, time.Second); got != want {
				t.Fatalf("attempt %d: %v, want %v", attempt, got, want)
			}
		}
	}
	finished := clock.Now()
	clock.SetTime(finished.Add(15 * time.Second))
	if got := r.remaining(id, 2, finished.Add(-time.Second), finished); got != 5*time.Second {
		t.Errorf("15s of 20s later: %v", got)
	}
	if got := remaining(3, 11*time.Minute); got != 0 {
		t.Errorf("after a long run: %v", got)
	}
	if got := remaining(4, time.Second); got != 10*time.Second {
		t.Errorf("and then: %v", got)
	}
	r.forget(id)
	if got := remaining(5, time.Second); got != 0 {
		t.Errorf("forgotten: %v", got)
	}
}
