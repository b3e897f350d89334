package provisioner

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// oneClaim is a class and a claim of it.
func oneClaim() []runtime.Object {
	return []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName)}
}

// TestFailedRetryThreshold: a claim is given up after so many failures; what may
// have been made is not.
func TestFailedRetryThreshold(t *testing.T) {
	for name, c := range map[string]struct {
		setup
		answers []outcome
		want    int
		atLeast bool
	}{
		"gives up after so many":                    {answers: []outcome{final}, setup: setup{threshold: 3}, want: 3},
		"0 gives up after the first":                {answers: []outcome{final}, setup: setup{giveUp: true}, want: 1},
		"no limit":                                  {answers: []outcome{final}, setup: setup{giveUp: true, options: []Option{WithoutRetryLimit()}}, want: 20, atLeast: true},
		"never what is in the background":           {answers: []outcome{background}, setup: setup{threshold: 3}, want: 20, atLeast: true},
		"given up once the background has ended":    {answers: []outcome{background, background, background, background, final}, setup: setup{threshold: 3}, want: 5},
		"a failure that changed nothing counts too": {answers: []outcome{noChange}, setup: setup{threshold: 3}, want: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.objects, c.maker = oneClaim(), script(c.answers...)
				w := newWorld(t, c.setup)
				w.rest(50)
				if made, _ := w.maker.calls(); made != c.want && (!c.atLeast || made < c.want) {
					t.Errorf("Provision was called %d times, want %d", made, c.want)
				}
				w.api.dropClaim("claim-1")
				w.rest(1)
				if len(w.inProgress()) == 0 {
					nothingRemembered(t, w)
				}
			})
		})
	}
}

// times notes when Provision was called.
type times struct {
	mu sync.Mutex
	at []time.Duration
}

func (s *times) note(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Since(since))
}

func (s *times) get() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.at...)
}

// timed makes a provisioner that always fails, and notes when.
func timed(answer func(n int) error) (*maker, *times) {
	began, s := time.Now(), &times{}
	return &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
		s.note(began)
		if err := answer(len(s.get())); err != nil {
			return nil, ProvisioningFinished, err
		}
		return nfsVolume(o), ProvisioningFinished, nil
	}}, s
}

func always(err error) func(int) error { return func(int) error { return err } }

// TestExponentialBackOffOnError: the pauses double up to the longest, or are all
// the resync period.
func TestExponentialBackOffOnError(t *testing.T) {
	for name, exponential := range map[string]bool{"true": true, "false": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, s := timed(always(errFake))
				newWorld(t, setup{objects: oneClaim(), maker: m, exponential: exponential, threshold: 12, options: []Option{WithRetryInterval(time.Second, 30*time.Second)}})
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				at := s.get()
				if len(at) != 12 {
					t.Fatalf("%d calls, want 12: %v", len(at), at)
				}
				for i := 1; i < len(at); i++ {
					least := resync
					if exponential {
						least = min(time.Second<<(i-1), 30*time.Second)
					}
					if pause := at[i] - at[i-1]; pause < least || pause > time.Duration(float64(least)*(1+jitter)) {
						t.Errorf("pause %d is %v, want %v and at most a fifth more", i, pause, least)
					}
				}
			})
		})
	}
}

// TestConstantPauseWithoutResync: there is a pause also where there is no period.
func TestConstantPauseWithoutResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := timed(always(errFake))
		newWorld(t, setup{objects: oneClaim(), maker: m, noResync: true, threshold: 3})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if at := s.get(); len(at) != 3 || at[1]-at[0] < defaultRetry {
			t.Errorf("calls at %v", at)
		}
	})
}

// TestThirtyErrorsThenSuccess (external-provisioner 154, 674): it is tried as
// long as it takes.
func TestThirtyErrorsThenSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := timed(func(n int) error {
			if n <= 30 {
				return errFake
			}
			return nil
		})
		w := newWorld(t, setup{objects: oneClaim(), maker: m, exponential: true, giveUp: true, options: []Option{WithoutRetryLimit()}})
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := len(s.get()); n != 31 || len(w.pvs()) != 1 {
			t.Errorf("%d calls and %d PersistentVolumes, want 31 and one", n, len(w.pvs()))
		}
	})
}

// TestClaimPatchedDuringAnAttempt (sig-storage-lib 103): what it says new is
// tried promptly, not after the backoff of the attempt that did not see it.
func TestClaimPatchedDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *world
		ready := make(chan struct{})
		m, s := timed(func(n int) error {
			<-ready
			switch n {
			case 1:
				return errFake
			case 2:
				w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) { c.Annotations["a/b"] = "new" })
				time.Sleep(time.Second) // it is seen before the attempt fails
				return errFake
			default:
				return nil
			}
		})
		w = newWorld(t, setup{objects: oneClaim(), maker: m, noResync: true, exponential: true, options: []Option{WithRetryInterval(time.Minute, time.Hour)}})
		close(ready)
		time.Sleep(time.Hour)
		synctest.Wait()
		if at := s.get(); len(at) != 3 || at[2]-at[1] > 1100*time.Millisecond {
			t.Errorf("calls at %v, want the third at the end of the second", at)
		}
	})
}

// TestEventsDoNotShortenABackoff: what repeats itself, or says nothing new to us,
// is no reason to try again.
func TestEventsDoNotShortenABackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := timed(always(errFake))
		w := newWorld(t, setup{objects: oneClaim(), maker: m, exponential: true, options: []Option{WithRetryInterval(time.Minute, time.Hour)}})
		w.rest(1)
		for range 20 {
			w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) { c.Labels = map[string]string{"at": time.Now().String()} })
			w.rest(1)
		}
		if at := s.get(); len(at) != 1 {
			t.Errorf("calls at %v, want one in the first minute", at)
		}
	})
}

type infeasibleError struct{ error }

func (infeasibleError) Infeasible() bool { return true }

// TestInfeasibleRetry: a refusal that only a change mends is repeated after the
// longest pause alone, or at once when something has changed.
func TestInfeasibleRetry(t *testing.T) {
	const longest = 5 * time.Minute
	refused := fmt.Errorf("driver: %w", infeasibleError{errFake})
	for name, c := range map[string]struct {
		err    error
		change func(*world)
		// within a minute there are so many calls, after the longest pause at least 2.
		want    int
		atLeast bool
	}{
		"another error is tried again at once":     {err: errFake, want: 4, atLeast: true},
		"infeasible: not before the longest pause": {err: refused, want: 1},
		"infeasible: an annotation changes nothing": {err: refused, want: 1, change: func(w *world) {
			w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) { c.Annotations["a/b"] = "c" })
		}},
		"infeasible: at once for another node": {err: refused, want: 2, change: func(w *world) {
			w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) { c.Annotations[AnnotationSelectedNode] = "node-2" })
		}},
		"infeasible: at once with another spec": {err: refused, want: 2, change: func(w *world) {
			w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("2Mi")
			})
		}},
		"infeasible: at once with another class of the name": {err: refused, want: 2, change: func(w *world) {
			w.api.dropClass("class-1")
			w.rest(1)
			class := storageClass("class-1", ourName)
			class.UID = "another"
			w.api.add(class)
		}},
		"infeasible: a class that says something else, and is the same": {err: refused, want: 1, change: func(w *world) {
			editClass(w, "class-1")
		}},
	} {
		for _, noResync := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, resync %t", name, !noResync), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m, s := timed(always(c.err))
					w := newWorld(t, setup{
						objects: oneClaim(), maker: m, noResync: noResync, exponential: true, giveUp: true,
						options: []Option{WithoutRetryLimit(), WithRetryInterval(time.Second, longest)},
					})
					w.rest(1)
					if c.change != nil {
						c.change(w)
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					if at := s.get(); len(at) != c.want && (!c.atLeast || len(at) < c.want) {
						t.Errorf("calls within a minute at %v, want %d", at, c.want)
					}
					time.Sleep(longest)
					synctest.Wait()
					if at := s.get(); len(at) <= c.want {
						t.Errorf("calls after the longest pause at %v, want more than %d", at, c.want)
					}
					if c.want == 1 && !strings.Contains(strings.Join(w.told(), "\n"), "Retries will be delayed") {
						t.Error("no event tells that it waits")
					}
					w.api.dropClaim("claim-1")
					time.Sleep(2 * longest)
					synctest.Wait()
					nothingRemembered(t, w)
				})
			})
		}
	}
}

// TestInfeasibleWithinABackoff: the timer of an earlier failure runs out before
// the longest pause, after a change that says nothing. It must not be the last.
func TestInfeasibleWithinABackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := timed(func(n int) error {
			if n == 1 {
				return errFake
			}
			return infeasibleError{errFake}
		})
		w := newWorld(t, setup{
			objects: oneClaim(), maker: m, noResync: true, exponential: true, giveUp: true,
			options: []Option{WithoutRetryLimit(), WithRetryInterval(time.Minute, 5*time.Minute)},
		})
		w.rest(1)
		for _, value := range []string{"c", "d"} {
			w.api.editClaim("claim-1", func(c *v1.PersistentVolumeClaim) { c.Annotations["a/b"] = value })
			w.rest(1)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		at := s.get()
		if len(at) < 10 {
			t.Fatalf("calls at %v, want one every five minutes", at)
		}
		for i := 2; i < len(at); i++ {
			if pause := at[i] - at[i-1]; pause < 5*time.Minute {
				t.Errorf("pause %d is %v, want the longest", i, pause)
			}
		}
	})
}

// TestBlockIsToldOnceInALongWhile: only a change mends it.
func TestBlockIsToldOnceInALongWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{exponential: true, objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName, func(c *v1.PersistentVolumeClaim) {
			mode := v1.PersistentVolumeBlock
			c.Spec.VolumeMode = &mode
		})}})
		time.Sleep(time.Minute)
		synctest.Wait()
		if events := w.told(); len(events) != 1 {
			t.Errorf("events: %q", events)
		}
	})
}

// TestErrorsOfProvisioning: they can be told apart through all that is wrapped.
func TestErrorsOfProvisioning(t *testing.T) {
	err := fmt.Errorf("a: %w", permanent{fmt.Errorf("b: %w", errFake)})
	if !infeasible(err) || !errors.Is(err, errFake) || infeasible(errFake) {
		t.Errorf("%v: infeasible %t, is the fake %t", err, infeasible(err), errors.Is(err, errFake))
	}
	if got := (&InUseError{Reason: "node n"}).Error(); got != "the volume is still in use: node n" {
		t.Errorf("InUseError: %q", got)
	}
}

// TestClassComesLate: the claim is tried when its class is made, not before, and
// promptly.
func TestClassComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{
			objects: []runtime.Object{claim("claim-1", "uid-1-1", "class-1", ourName)}, noResync: true, exponential: true,
			options: []Option{WithRetryInterval(time.Hour, time.Hour)},
		})
		w.rest(1)
		if events := w.told(); len(events) != 1 || !strings.Contains(events[0], `StorageClass "class-1" does not exist`) {
			t.Errorf("events: %q", events)
		}
		w.api.add(storageClass("class-1", ourName))
		w.rest(1)
		if len(w.pvs()) != 1 {
			t.Error("the claim still waits")
		}
	})
}
