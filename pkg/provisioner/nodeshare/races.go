package nodeshare

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// kept is how long, in longest waits, a race is remembered that nobody asked
// about. A claim that is still open is asked about after one.
const kept = 4

// races are the claims that this node tries, or has tried, to take.
type races struct {
	base, longest time.Duration
	random        func() float64

	mu      sync.Mutex
	byClaim map[types.UID]race
	swept   time.Time
}

// race is for one claim.
type race struct {
	// tries that were made.
	tries int
	// due is when the next is; zero: it is not drawn yet.
	due time.Time
	// asked is when somebody asked last.
	asked time.Time
	// reason is what was last said of why the claim is not taken.
	reason string
}

func newRaces(base, longest time.Duration, random func() float64) *races {
	return &races{base: base, longest: longest, random: random, byClaim: map[types.UID]race{}}
}

// wait is how long it is until the next try; 0: it is time. The first to ask draws
// it: from nothing up to the base, doubled for each try before.
func (r *races) wait(uid types.UID, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweep(now)
	race := r.byClaim[uid]
	if race.due.IsZero() {
		race.due = now.Add(time.Duration(r.random() * float64(r.window(race.tries))))
	}
	race.asked = now
	r.byClaim[uid] = race
	return max(0, race.due.Sub(now))
}

// again counts a try that did not get the claim, and draws the next. It is at
// least half the longest wait away where patient: nobody else is in a hurry.
func (r *races) again(uid types.UID, now time.Time, patient bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	race := r.byClaim[uid]
	race.tries++
	least, window := time.Duration(0), r.window(race.tries)
	if patient {
		least, window = r.longest/2, r.longest/2
	}
	// A wait of nothing would be none.
	d := max(time.Nanosecond, least+time.Duration(r.random()*float64(window)))
	race.due, race.asked = now.Add(d), now
	r.byClaim[uid] = race
	return d
}

// won counts a try that got the claim. Should we have to give it back, the others
// come before us.
func (r *races) won(uid types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byClaim[uid] = race{tries: r.byClaim[uid].tries + 1, asked: now}
}

// forget drops a claim that is another's.
func (r *races) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byClaim, uid)
}

// news notes why a claim is not taken, and reports whether that was not said
// before.
func (r *races) news(uid types.UID, reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	race := r.byClaim[uid]
	if race.reason == reason {
		return false
	}
	race.reason = reason
	r.byClaim[uid] = race
	return true
}

// window is the longest wait after so many tries.
func (r *races) window(tries int) time.Duration {
	d := r.base
	for ; tries > 0 && d < r.longest; tries-- {
		d *= 2
	}
	return min(d, r.longest)
}

// sweep forgets claims that nobody asks about any more: they are gone. Callers
// hold mu.
func (r *races) sweep(now time.Time) {
	if now.Sub(r.swept) < r.longest {
		return
	}
	r.swept = now
	for uid, race := range r.byClaim {
		if now.Sub(race.asked) > kept*r.longest {
			delete(r.byClaim, uid)
		}
	}
}
