package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	ns       = "csi"
	duration = 15 * time.Second
	deadline = 10 * time.Second
	retry    = 2 * time.Second
)

func config(l *link, identity string, leases ...string) Config {
	return Config{
		Client: l, Namespace: ns, Leases: leases, Identity: identity,
		LeaseDuration: duration, RenewDeadline: deadline, RetryPeriod: retry,
	}
}

// end stops the replica and returns what Run returned.
func (r *replica) end() error {
	r.stop()
	return <-r.done
}

func (r *replica) isLeading() bool {
	select {
	case <-r.leads:
		return true
	default:
		return false
	}
}

func TestLeasesAreTakenInOrderAndLeadsOnceAllAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.give("second", "old-sidecar", 15)
		s.give("third", "", 1)
		r := s.start(t, "me", "first", "second", "third")
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.holder("first"); got != "me" {
			t.Errorf("first lease is held by %q, want me", got)
		}
		if s.holder("third") != "" {
			t.Error("the third lease was taken before the second")
		}
		if r.isLeading() || r.IsLeader() {
			t.Error("leads without the second lease")
		}
		if want := "lease csi/second is held by old-sidecar"; r.Waiting() != want {
			t.Errorf("Waiting() = %q, want %q", r.Waiting(), want)
		}
		<-r.leads // once the old sidecar's lease has run out
		if s.holder("second") != "me" || s.holder("third") != "me" || !r.IsLeader() {
			t.Errorf("leads with second held by %q, third by %q, IsLeader() = %v", s.holder("second"), s.holder("third"), r.IsLeader())
		}
		if r.Waiting() != "" {
			t.Errorf("Waiting() = %q while leading, want nothing", r.Waiting())
		}
		if err := r.end(); err != nil {
			t.Errorf("Run() = %v, want nil after its context ended", err)
		}
	})
}

func TestLeasesOfADeadLeaderRunOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		leases := []string{"first", "second", "third"}
		for _, name := range leases {
			s.give(name, "dead", 15)
		}
		r := s.start(t, "me", leases...)
		begun := time.Now()
		<-r.leads
		// client-go looks again after up to 2.2 retry periods.
		if took := time.Since(begun); took < duration || took > duration+3*retry {
			t.Errorf("it leads after %v, want that of one lease, %v, and not of each", took, duration)
		}
		var taken []string // at first; those already taken are renewed in between
		for _, write := range s.log() {
			if name := strings.Fields(write)[1]; !slices.Contains(taken, name) {
				taken = append(taken, name)
			}
		}
		if !slices.Equal(taken, leases) {
			t.Errorf("the leases were taken in the order %v", taken)
		}
		_ = r.end()
	})
}

func TestLeadsOnWhileRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newServer().start(t, "me", "a", "b")
		<-r.leads
		for range 600 {
			time.Sleep(time.Second)
			if !r.IsLeader() {
				t.Fatal("IsLeader() = false although all is renewed")
			}
		}
		_ = r.end()
	})
}

func TestReleaseAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r := s.start(t, "me", "a", "b")
		<-r.leads
		if err := r.end(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if s.holder("a") != "" || s.holder("b") != "" {
			t.Errorf("leases are held by %q and %q after the end, want nobody", s.holder("a"), s.holder("b"))
		}
		if r.IsLeader() {
			t.Error("IsLeader() = true after the end")
		}
	})
}

func TestReleasedOnlyOnceTheWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r := s.startWith(t, config(&link{server: s}, "me", "a"), func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(30 * time.Second) // a long drain
			if s.holder("a") != "me" {
				t.Error("the lease was released, or ran out, during the drain")
			}
			return nil
		})
		<-r.leads
		if err := r.end(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if s.holder("a") != "" {
			t.Error("the lease was not released after the drain")
		}
	})
}

// A stop is for the work to hear of; the leadership goes on until it has ended.
func TestAStopLeavesTheLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var r *replica
		r = s.startWith(t, config(&link{server: s}, "me", "a"), func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(30 * time.Second) // a long drain
			if r.held.Err() != nil || !r.IsLeader() {
				t.Errorf("during the drain the leadership has ended: %v, IsLeader() = %v", r.held.Err(), r.IsLeader())
			}
			return nil
		})
		<-r.leads
		if err := r.end(); err != nil || r.held.Err() == nil {
			t.Errorf("Run() = %v, want nil; held ended by %v, want that it ends with Run", err, r.held.Err())
		}
	})
}

// What was left behind may still act: the next leader waits as for a dead one.
func TestUnfinishedWorkKeepsTheLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		unfinished := fmt.Errorf("a call hangs: %w", ErrUnfinished)
		r := s.startWith(t, config(&link{server: s}, "me", "a", "b"), func(ctx context.Context) error {
			<-ctx.Done()
			return unfinished
		})
		<-r.leads
		next := s.start(t, "next", "a", "b")
		synctest.Wait()
		ended := time.Now()
		if err := r.end(); !errors.Is(err, unfinished) || r.IsLeader() {
			t.Errorf("Run() = %v, IsLeader() = %v; want the work's error and false", err, r.IsLeader())
		}
		if took := time.Since(ended); took > 0 {
			t.Errorf("Run() returned %v after the work", took)
		}
		if s.holder("a") != "me" || s.holder("b") != "me" {
			t.Errorf("a is held by %q, b by %q; want that no lease was released", s.holder("a"), s.holder("b"))
		}
		<-next.leads
		if took := time.Since(ended); took < deadline {
			t.Errorf("the next one leads %v after the end, want that it waits until the leases run out", took)
		}
		_ = next.end()
	})
}

func TestStopWhileWaitingReleasesWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.give("b", "other", 3600)
		r := s.start(t, "me", "a", "b")
		time.Sleep(time.Minute)
		if err := r.end(); err != nil || r.isLeading() {
			t.Errorf("Run() = %v, led: %v; want nil and false", err, r.isLeading())
		}
		if s.holder("a") != "" || s.holder("b") != "other" {
			t.Errorf("a is held by %q, b by %q; want nobody and other", s.holder("a"), s.holder("b"))
		}
	})
}

func TestTakeoverAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		first := s.start(t, "one", "a", "b")
		<-first.leads
		second := s.start(t, "two", "a", "b")
		time.Sleep(20 * time.Second)
		if second.isLeading() {
			t.Fatal("two lead at once")
		}
		if want := "lease csi/a is held by one"; second.Waiting() != want {
			t.Errorf("Waiting() = %q, want %q", second.Waiting(), want)
		}
		_ = first.end()
		released := time.Now()
		<-second.leads
		// The pause between two attempts is jittered up to 2.2 times; b is free by then.
		if took := time.Since(released); took > 5*time.Second {
			t.Errorf("took over %v after the release, want about the retry period of %v", took, retry)
		}
		_ = second.end()
	})
}

func TestWorkThatEndsEndsTheLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		broken := errors.New("broken")
		r := s.startWith(t, config(&link{server: s}, "me", "a"), func(context.Context) error { return broken })
		if err := <-r.done; !errors.Is(err, broken) {
			t.Errorf("Run() = %v, want the work's error", err)
		}
		if s.holder("a") != "" || r.IsLeader() {
			t.Errorf("the lease is held by %q, IsLeader() = %v after the work has ended", s.holder("a"), r.IsLeader())
		}
		r.stop()
	})
}

func TestIdentityIsRandom(t *testing.T) {
	s := newServer()
	seen := map[string]bool{}
	for range 3 {
		e, err := New(config(&link{server: s}, "", "a"))
		if err != nil {
			t.Fatal(err)
		}
		id := e.locks[0].Identity()
		if id == "" || seen[id] {
			t.Errorf("identity %q is empty or was had before", id)
		}
		seen[id] = true
	}
}

func TestNone(t *testing.T) {
	ran := false
	ctx, stop := context.WithCancel(t.Context())
	stop()
	err := (None{}).Run(ctx, func(ctx, held context.Context) error {
		ran = ctx.Err() != nil && held.Err() == nil
		return nil
	})
	if err != nil || !ran {
		t.Errorf("Run() = %v, ran, with a leadership that outlives its context: %v", err, ran)
	}
	if !(None{}).IsLeader() || (None{}).Waiting() != "" {
		t.Error("None does not lead")
	}
}

func TestConfigIsValidated(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"good":                   {change: func(*Config) {}},
		"no client":              {func(c *Config) { c.Client = nil }, "Client"},
		"no namespace":           {func(c *Config) { c.Namespace = "" }, "namespace"},
		"no lease":               {func(c *Config) { c.Leases = nil }, "lease"},
		"deadline over duration": {func(c *Config) { c.RenewDeadline = c.LeaseDuration }, "must be longer than the renew deadline"},
		// Others would see a lease of 1s and take it while we still act.
		"fraction of a second": {func(c *Config) {
			c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = 1900*time.Millisecond, 1500*time.Millisecond, time.Second
		}, "whole seconds"},
		"retry over deadline": {func(c *Config) { c.RetryPeriod = 9 * time.Second }, "times the retry period"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(&link{server: newServer()}, "", "a")
			c.change(&cfg)
			_, err := New(cfg)
			if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("New() = %v, want an error with %q", err, c.want)
			}
		})
	}
}

// The names are those that the upstream sidecars make of theirs.
func TestSanitizeName(t *testing.T) {
	for name, want := range map[string]string{
		"external-attacher-leader-ebs.csi.aws.com": "external-attacher-leader-ebs-csi-aws-com",
		"ha-sidecar-a_b/c":                         "ha-sidecar-a-b-c",
		"ends.":                                    "ends-X",
		"plain":                                    "plain",
		"":                                         "",
	} {
		if got := SanitizeName(name); got != want {
			t.Errorf("SanitizeName(%q) = %q, want %q", name, got, want)
		}
	}
}

// countWrites counts the requests of the log that write one of the names.
func countWrites(log []string, name string) int {
	n := 0
	for _, w := range log {
		if slices.Contains(strings.Fields(w), name) {
			n++
		}
	}
	return n
}
