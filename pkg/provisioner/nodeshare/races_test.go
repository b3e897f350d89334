package nodeshare

import (
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestWindowsDouble(t *testing.T) {
	r := newRaces(20*time.Second, time.Minute, rand.Float64)
	for tries, want := range []time.Duration{20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
		if got := r.window(tries); got != want {
			t.Errorf("after %d tries: %v, want %v", tries, got, want)
		}
	}
	if got := r.window(1 << 30); got != time.Minute {
		t.Errorf("after very many: %v", got)
	}
}

// TestTheFirstWaitIsDrawnOnce: events of the claim do not shorten it, nor draw
// again.
func TestTheFirstWaitIsDrawnOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Float64Range(0, 0.999999).Draw(t, "draw")
		r := newRaces(20*time.Second, time.Minute, func() float64 { return draw })
		first := r.wait("u", start)
		if first < 0 || first >= 20*time.Second {
			t.Fatalf("the first wait is %v", first)
		}
		draw = 0.5
		gone := time.Duration(0)
		for range 5 {
			gone += time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "gone"))
			if got, want := r.wait("u", start.Add(gone)), max(0, first-gone); got != want {
				t.Fatalf("after %v of %v: %v, want %v", gone, first, got, want)
			}
		}
	})
}

func TestAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRaces(20*time.Second, time.Minute, rand.Float64)
		lost, patient := rapid.IntRange(0, 5).Draw(t, "lost"), rapid.Bool().Draw(t, "patient")
		for range lost {
			r.again("u", start, false)
		}
		d := r.again("u", start, patient)
		least, most := time.Nanosecond, r.window(lost+1)
		if patient {
			least, most = 30*time.Second, time.Minute
		}
		if d < least || d > most {
			t.Fatalf("after %d, patient %v: %v, want %v to %v", lost, patient, d, least, most)
		}
		if got := r.wait("u", start.Add(time.Second)); got != max(0, d-time.Second) {
			t.Fatalf("a second later %v are left of %v", got, d)
		}
	})
}

// TestWhoGaveAClaimBackWaitsLonger than whoever has not had it.
func TestWhoGaveAClaimBackWaitsLonger(t *testing.T) {
	r := newRaces(20*time.Second, time.Minute, func() float64 { return 0.9 })
	if got := r.wait("fresh", start); got != 18*time.Second {
		t.Errorf("%v", got)
	}
	r.won("u", start)
	if got := r.wait("u", start.Add(time.Minute)); got != 36*time.Second {
		t.Errorf("the wait is %v after it was given back, want it drawn from twice as long", got)
	}
	r.forget("u")
	if got := r.wait("u", start.Add(time.Minute)); got != 18*time.Second {
		t.Errorf("the wait is %v after another had it", got)
	}
}

// TestNothingIsKeptOfWhatIsGone, and all of what is still asked about.
func TestNothingIsKeptOfWhatIsGone(t *testing.T) {
	r := newRaces(20*time.Second, time.Minute, func() float64 { return 0.5 })
	for i := range 1000 {
		r.wait(types.UID(rune(i)), start)
	}
	now := start
	r.again("kept", now, false)
	tries := r.byClaim["kept"].tries
	for range 10 {
		now = now.Add(time.Minute)
		r.wait("kept", now)
	}
	if len(r.byClaim) != 1 || r.byClaim["kept"].tries != tries {
		t.Errorf("%d claims are kept, the one that is asked about with %d tries, want %d", len(r.byClaim), r.byClaim["kept"].tries, tries)
	}
}
