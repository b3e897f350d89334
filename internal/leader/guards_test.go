package leader

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// A process that was stopped and continued may ask before any goroutine of the
// election has run again: the clock alone has to say no.
func TestGuardIsLeaderByTheClockAlone(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	cfg := config(&link{server: newServer()}, "me", "a", "b")
	cfg.Clock = clk
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.set(true, false)
	for _, l := range e.locks {
		l.held, l.renewed = true, clk.Now()
	}
	clk.SetTime(clk.Now().Add(deadline - time.Millisecond))
	if !e.IsLeader() {
		t.Error("IsLeader() = false before the deadline")
	}
	e.locks[0].renewed = clk.Now()
	clk.SetTime(clk.Now().Add(time.Millisecond))
	if e.IsLeader() {
		t.Error("IsLeader() = true though one lease was not renewed within the deadline")
	}
}
