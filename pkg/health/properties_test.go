package health

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// machine drives a tracker at random, and keeps beside it what may count as
// evidence, by the simplest bookkeeping there is.
type machine struct {
	tracker *tracker
	now     time.Time
	asked   map[volume.Handle]struct{}
	checks  []check
	stored  map[origin][]volume.Reading
	// streak counts consecutive answers of the controller plugin by key.
	streak map[volume.Key]int
	// proven are the keys for which there ever was enough evidence.
	proven map[volume.Key]bool
}

var (
	someHandles = []volume.Handle{"a", "b"}
	someNodes   = []string{"n1", "n2"}
	adverse     = []volume.ConditionKind{volume.Inaccessible, volume.Degraded, volume.DataLoss, volume.Abnormal, volume.UnknownCondition, "Haunted"}
)

func newMachine() *machine {
	return &machine{
		tracker: newTracker(testRules),
		now:     time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		asked:   map[volume.Handle]struct{}{"a": {}, "b": {}},
		stored:  map[origin][]volume.Reading{},
		streak:  map[volume.Key]int{},
		proven:  map[volume.Key]bool{},
	}
}

func drawKey(t *rapid.T, everywhere bool) volume.Key {
	key := volume.Key{Handle: rapid.SampledFrom(someHandles).Draw(t, "handle")}
	if !everywhere {
		key.Node = rapid.SampledFrom(someNodes).Draw(t, "node")
	}
	return key
}

func drawConditions(t *rapid.T) []volume.Condition {
	kinds := rapid.SliceOfN(rapid.SampledFrom(adverse), 0, 2).Draw(t, "kinds")
	var conditions []volume.Condition
	for _, k := range kinds {
		conditions = append(conditions, volume.Condition{Kind: k, Reason: "R"})
	}
	return conditions
}

// sweep hands over a pass with readings of keys of either form: with a node,
// as the legacy dialect is expanded to.
func (m *machine) sweep(t *rapid.T) {
	s := volume.Sweep{Complete: rapid.Bool().Draw(t, "complete"), AbnormalOnly: rapid.Bool().Draw(t, "abnormalOnly")}
	for range rapid.IntRange(0, 3).Draw(t, "n") {
		s.Readings = append(s.Readings, volume.Reading{
			Key: drawKey(t, rapid.Bool().Draw(t, "everywhere")), Source: volume.SourceController,
			Conditions: drawConditions(t), Started: m.now,
		})
	}
	m.tracker.observeSweep(s, m.asked, m.now)
	said := map[volume.Key]volume.State{}
	for _, r := range s.Readings {
		if state, _ := classify(r.Conditions); state.Severity() > said[r.Key].Severity() {
			said[r.Key] = state
		}
	}
	for key, state := range said {
		if state != volume.StateInaccessible {
			m.streak[key] = 0
		} else if m.streak[key]++; m.streak[key] >= testRules.confirmations {
			m.proven[key] = true
		}
	}
}

func (m *machine) tell(t *rapid.T) {
	node := rapid.SampledFrom(someNodes).Draw(t, "node")
	o := origin{volume.SourceCSINodeStatus, node}
	if rapid.Bool().Draw(t, "pod") {
		o = origin{volume.SourcePodStatus, node + "-" + rapid.SampledFrom([]string{"p", "q"}).Draw(t, "pod")}
	}
	var readings []volume.Reading
	for range rapid.IntRange(0, 2).Draw(t, "n") {
		readings = append(readings, volume.Reading{
			Key:    volume.Key{Handle: rapid.SampledFrom(someHandles).Draw(t, "handle"), Node: node},
			Source: o.source, Conditions: drawConditions(t), Started: m.now,
		})
	}
	m.stored[o] = readings
	if len(readings) == 0 && rapid.Bool().Draw(t, "ends") {
		m.tracker.end(o, m.now)
		return
	}
	m.tracker.tell(o, readings, m.now)
}

// answer ends one of the checks under way, well or badly. Without any it lets
// the time pass that the next one may wait for.
func (m *machine) answer(t *rapid.T) {
	if len(m.checks) == 0 {
		m.advance(t)
	}
	if len(m.checks) == 0 {
		return
	}
	c := m.checks[0]
	m.checks = m.checks[1:]
	a := answer{check: c}
	switch rapid.SampledFrom([]string{"same", "gone", "fail", "stale"}).Draw(t, "answer") {
	case "same":
		a.readings = m.stored[c.origin]
		for _, r := range mergeReadings(a.readings) {
			if state, _ := classify(r.Conditions); state == volume.StateInaccessible {
				m.proven[r.Key] = true
			}
		}
	case "fail":
		a.err = errors.New("away")
	case "stale":
		a.readings, a.leaseStale = m.stored[c.origin], true
	}
	m.tracker.verify(a, m.now)
}

func (m *machine) advance(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
	m.checks = append(m.checks, m.tracker.tick(m.now)...)
}

func (m *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"sweep":   m.sweep,
		"tell":    m.tell,
		"answer":  m.answer,
		"advance": m.advance,
		"attach":  func(t *rapid.T) { m.tracker.attach(drawKey(t, false)) },
		"detach":  func(t *rapid.T) { m.tracker.detach(drawKey(t, false), m.now) },
		"lease":   func(t *rapid.T) { m.tracker.leaseRenewed(rapid.SampledFrom(someNodes).Draw(t, "node"), m.now) },
		"forget": func(t *rapid.T) {
			m.tracker.forget(rapid.SampledFrom(someHandles).Draw(t, "handle"))
		},
	}
}

func TestNoVerdictWithoutEvidence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		actions := m.actions()
		actions[""] = func(t *rapid.T) {
			m.checks = append(m.checks, m.tracker.tick(m.now)...)
			m.tracker.transitions()
			s := m.tracker.snapshot()
			for _, v := range s.verdicts {
				if v.FailsFromNode() && !m.proven[v.Key] {
					t.Fatalf("acts without evidence: %+v", v)
				}
				if v.FailsFromNode() && v.Key.Node == "" {
					t.Fatalf("acts on every node: %+v", v)
				}
				if v.Confirmed != !v.ConfirmedAt.IsZero() {
					t.Fatalf("confirmed at no time, or the other way round: %+v", v)
				}
				if v.Suspect() && !v.SuspectUntil.After(m.now) {
					t.Fatalf("suspicion outlives its time: %+v", v)
				}
			}
			if !slices.IsSortedFunc(s.statuses, func(a, b Status) int { return compareKeys(a.Key, b.Key) }) {
				t.Fatalf("not in order: %+v", s.statuses)
			}
		}
		t.Repeat(actions)
	})
}

// What is remembered is bounded by what is wrong: when all is said to be well,
// and time has passed, nothing is left.
func TestNothingIsLeftBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		actions := m.actions()
		t.Repeat(actions)
		for o := range m.stored {
			m.tracker.tell(o, nil, m.now)
		}
		healthy := volume.Sweep{Complete: true}
		for _, h := range someHandles {
			healthy.Readings = append(healthy.Readings, volume.Reading{Key: volume.Key{Handle: h}, Started: m.now})
			for _, n := range someNodes {
				healthy.Readings = append(healthy.Readings, volume.Reading{Key: volume.Key{Handle: h, Node: n}, Started: m.now})
				m.tracker.detach(volume.Key{Handle: h, Node: n}, m.now)
			}
		}
		m.tracker.observeSweep(healthy, m.asked, m.now)
		for range 4 {
			m.now = m.now.Add(2 * time.Hour)
			m.tracker.tick(m.now)
			m.tracker.transitions()
		}
		if n := len(m.tracker.entries) + len(m.tracker.told) + len(m.tracker.byNode) + len(m.tracker.byOrigin) + len(m.tracker.timers); n != 0 {
			t.Fatalf("left behind: entries %v, told %v, nodes %v, origins %v, timers %v",
				m.tracker.entries, m.tracker.told, m.tracker.byNode, m.tracker.byOrigin, m.tracker.timers)
		}
	})
}

// A failed check, an incomplete or full sweep without the volume, and the
// volume's absence from one complete sweep leave every verdict as it is.
func TestAbsenceAndFailureChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		for _, key := range []volume.Key{{Handle: "a"}, {Handle: "b", Node: "n1"}} {
			for range testRules.confirmations {
				m.tracker.observePolled(volume.Reading{Key: key, Started: m.now, Conditions: []volume.Condition{{Kind: volume.Inaccessible}}}, m.now)
			}
		}
		o := origin{volume.SourcePodStatus, "p"}
		m.tracker.attach(volume.Key{Handle: "a", Node: "n2"})
		m.tracker.tell(o, []volume.Reading{{Key: volume.Key{Handle: "a", Node: "n2"}, Conditions: []volume.Condition{{Kind: volume.Inaccessible}}, Started: m.now}}, m.now)
		m.tracker.transitions()
		before := m.tracker.snapshot()
		// A second complete, abnormal-only sweep would be a recovery.
		missed := false
		t.Repeat(map[string]func(*rapid.T){
			"partial": func(t *rapid.T) {
				m.tracker.observeSweep(volume.Sweep{AbnormalOnly: rapid.Bool().Draw(t, "abnormalOnly")}, m.asked, m.now)
			},
			"full list": func(*rapid.T) { m.tracker.observeSweep(volume.Sweep{Complete: true}, m.asked, m.now) },
			"absent once": func(*rapid.T) {
				m.tracker.observeSweep(volume.Sweep{Complete: !missed, AbnormalOnly: true}, m.asked, m.now)
				missed = true
			},
			"somebody else's volume": func(t *rapid.T) {
				m.tracker.observeSweep(volume.Sweep{Readings: []volume.Reading{
					{Key: volume.Key{Handle: "foreign"}, Started: m.now, Conditions: drawConditions(t)},
				}}, m.asked, m.now)
			},
			"failed check": func(*rapid.T) {
				m.now = m.now.Add(time.Minute)
				for _, c := range m.tracker.tick(m.now) {
					m.tracker.verify(answer{check: c, err: errors.New("away")}, m.now)
				}
			},
			"": func(t *rapid.T) {
				m.tracker.transitions()
				if diff := cmp.Diff(before.verdicts, m.tracker.snapshot().verdicts); diff != "" {
					t.Fatalf("something changed:\n%s", diff)
				}
			},
		})
	})
}

// However a driver flaps, fewer than the needed answers in a row confirm nothing.
func TestFlappingBelowTheThresholdNeverConfirms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		abnormalOnly := rapid.Bool().Draw(t, "abnormalOnly")
		for i := range rapid.IntRange(1, 20).Draw(t, "bursts") {
			for range rapid.IntRange(1, testRules.confirmations-1).Draw(t, fmt.Sprint("burst ", i)) {
				// Twice in one answer is one answer.
				r := volume.Reading{Key: volume.Key{Handle: "a"}, Started: m.now, Conditions: []volume.Condition{{Kind: volume.Inaccessible}}}
				m.tracker.observeSweep(volume.Sweep{Complete: true, AbnormalOnly: abnormalOnly, Readings: []volume.Reading{r, r}}, m.asked, m.now)
			}
			pause := volume.Sweep{Complete: true, AbnormalOnly: abnormalOnly}
			if !abnormalOnly {
				other := rapid.SampledFrom([][]volume.Condition{nil, {{Kind: volume.Degraded}}}).Draw(t, "other")
				pause.Readings = []volume.Reading{{Key: volume.Key{Handle: "a"}, Started: m.now, Conditions: other}}
			}
			m.tracker.observeSweep(pause, m.asked, m.now)
			for _, change := range m.tracker.transitions() {
				if change.to.Confirmed && change.to.State == volume.StateInaccessible {
					t.Fatalf("confirmed: %+v", change.to)
				}
			}
		}
	})
}
