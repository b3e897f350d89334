package health

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// TestTranscripts plays the scenarios of testdata against the tracker, with the
// part of the Monitor played here: Leases are renewed and live reads answered
// as the scenario says. Run with -rewrite to write the transcripts anew.
//
//	rules confirmations=3 confirm-after=10s suspect-for=10m suspect-max=1h lease-grace=20s
//	attach|detach VOLUME NODE
//	lease NODE            a renewal of the node's Lease is observed
//	advance 10s           time passes; what is due is done when it is due
//	sweep [partial] [abnormal-only] [legacy-failover]    lines: VOLUME CONDITION REASON | VOLUME healthy
//	pod-status POD NODE   lines as above; none: the pod is no more
//	csinode-status NODE   lines as above; none: the answer is withdrawn
//	live POD|NODE same|healthy|gone|fail    what a live read will say
//	recall VOLUME NODE 5m   a hold from an earlier life, with what is left of it
//	forget VOLUME
//	verdicts
func TestTranscripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			s := newStage()
			datadriven.RunTest(t, path, s.play)
		})
	}
}

type stage struct {
	start, now time.Time
	tracker    *tracker
	leases     *leases
	at         *attachments
	asked      map[volume.Handle]struct{}
	stored     map[origin][]volume.Reading
	live       map[string]string
	out        strings.Builder
}

func newStage() *stage {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &stage{
		start: start, now: start,
		tracker: newTracker(testRules),
		leases:  newLeases(DefaultLeaseGrace),
		at:      newAttachments(),
		asked:   map[volume.Handle]struct{}{"vol-1": {}, "vol-2": {}},
		stored:  map[origin][]volume.Reading{},
		live:    map[string]string{},
	}
}

var testRules = rules{
	confirmations: DefaultConfirmations,
	confirmAfter:  DefaultConfirmAfter,
	suspectFor:    DefaultSuspectFor,
	suspectMax:    DefaultSuspectMax,
}

func (s *stage) play(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	var words []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			words = append(words, a.Key)
		}
	}
	switch d.Cmd {
	case "rules":
		s.rules(t, d)
	case "attach", "detach":
		s.attach(d.Cmd == "attach", volume.Key{Handle: volume.Handle(words[0]), Node: words[1]})
	case "lease":
		// Seen once, and then changed.
		s.leases.observe(words[0], time.Time{}, s.now)
		s.leases.observe(words[0], s.now, s.now)
		s.tracker.leaseRenewed(words[0], s.now)
		s.settle()
	case "advance":
		s.advance(duration(t, words[0]))
	case "sweep":
		s.sweep(t, words, d.Input)
	case "pod-status":
		s.tell(t, origin{volume.SourcePodStatus, words[0]}, words[1], d.Input)
	case "csinode-status":
		s.tell(t, origin{volume.SourceCSINodeStatus, words[0]}, words[0], d.Input)
	case "live":
		s.live[words[0]] = words[1]
	case "recall":
		key := volume.Key{Handle: volume.Handle(words[0]), Node: words[1]}
		s.tracker.recall(key, volume.SourcePodStatus, s.now, s.now.Add(duration(t, words[2])))
	case "forget":
		s.tracker.forget(volume.Handle(words[0]))
	case "verdicts":
		s.verdicts()
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	s.print()
	if s.out.Len() == 0 {
		return "nothing changes\n"
	}
	return s.out.String()
}

func (s *stage) rules(t *testing.T, d *datadriven.TestData) {
	for _, a := range d.CmdArgs {
		switch value := a.Vals[0]; a.Key {
		case "confirmations":
			a.Scan(t, 0, &s.tracker.rules.confirmations)
		case "confirm-after":
			s.tracker.rules.confirmAfter = duration(t, value)
		case "suspect-for":
			s.tracker.rules.suspectFor = duration(t, value)
		case "suspect-max":
			s.tracker.rules.suspectMax = duration(t, value)
		case "lease-grace":
			s.leases.grace = duration(t, value)
		default:
			t.Fatalf("%s: unknown rule %s", d.Pos, a.Key)
		}
	}
	s.out.WriteString("ok\n")
}

func duration(t *testing.T, value string) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (s *stage) attach(attached bool, key volume.Key) {
	name := string(key.Handle) + "/" + key.Node
	if attached {
		s.at.put(name, attachment{key: key, attached: true})
		s.tracker.attach(key)
		return
	}
	s.at.remove(name)
	s.tracker.detach(key, s.now)
}

func (s *stage) readings(t *testing.T, source volume.Source, node, input string) []volume.Reading {
	var readings []volume.Reading
	for line := range strings.Lines(input) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			t.Fatalf("bad line %q", line)
		}
		r := volume.Reading{Key: volume.Key{Handle: volume.Handle(fields[0]), Node: node}, Source: source, Started: s.now}
		if fields[1] != "healthy" {
			r.Conditions = []volume.Condition{{Kind: volume.ConditionKind(fields[1]), Reason: fields[2]}}
		}
		readings = append(readings, r)
	}
	return readings
}

func (s *stage) sweep(t *testing.T, words []string, input string) {
	sweep := volume.Sweep{
		Readings:     s.readings(t, volume.SourceController, "", input),
		Complete:     !slices.Contains(words, "partial"),
		AbnormalOnly: slices.Contains(words, "abnormal-only"),
	}
	if slices.Contains(words, "legacy-failover") {
		sweep.Readings = expandLegacy(sweep.Readings, s.at.nodesOf)
	}
	s.tracker.observeSweep(sweep, s.asked, s.now)
}

func (s *stage) tell(t *testing.T, o origin, node, input string) {
	s.stored[o] = s.readings(t, o.source, node, input)
	if o.source == volume.SourcePodStatus && len(s.stored[o]) == 0 {
		s.tracker.end(o, s.now)
	} else {
		s.tracker.tell(o, s.stored[o], s.now)
	}
	s.settle()
}

func (s *stage) advance(d time.Duration) {
	end := s.now.Add(d)
	for {
		next, ok := s.tracker.next()
		if !ok || next.After(end) {
			break
		}
		s.now = next
		s.settle()
	}
	s.now = end
}

// settle does what is due, and answers the checks at once.
func (s *stage) settle() {
	for _, c := range s.tracker.tick(s.now) {
		a := answer{check: c, leaseStale: !s.leases.fresh(c.node, s.now)}
		switch s.live[c.origin.object] {
		case "fail":
			a.err = errors.New("the server is away")
		case "gone":
		case "healthy":
			for _, key := range c.keys {
				a.readings = append(a.readings, volume.Reading{Key: key})
			}
		default:
			a.readings = s.stored[c.origin]
		}
		s.tracker.verify(a, s.now)
	}
	s.print()
}

func (s *stage) print() {
	for _, change := range s.tracker.transitions() {
		fmt.Fprintf(&s.out, "%v %s -> %s\n", s.now.Sub(s.start), change.from.State, s.describe(change.to))
	}
}

func (s *stage) verdicts() {
	snapshot := s.tracker.snapshot()
	for _, v := range snapshot.verdicts {
		act := "report only"
		switch {
		case v.Suspect():
			act = "the node is not trusted"
		case v.FailsFromNode():
			act = "fails from node"
		}
		fmt.Fprintf(&s.out, "%s: %s\n", s.describe(Status{Verdict: v}), act)
	}
	if hidden := len(snapshot.statuses) - len(snapshot.verdicts); hidden > 0 {
		fmt.Fprintf(&s.out, "outranked: %d\n", hidden)
	}
	if s.out.Len() == 0 {
		s.out.WriteString("none\n")
	}
}

func (s *stage) describe(v Status) string {
	where := "everywhere"
	if !v.Key.Everywhere() {
		where = "on " + v.Key.Node
	}
	text := fmt.Sprintf("%s %s %s", v.State, v.Key.Handle, where)
	if !v.Abnormal() {
		return text
	}
	text += fmt.Sprintf(" (%s, %s", v.Reason, v.Source)
	switch {
	case v.Suspect():
		text += fmt.Sprintf(", suspect until %v", v.SuspectUntil.Sub(s.start))
	case v.Confirmed:
		text += ", confirmed"
	case v.Waiting != "":
		text += ", unconfirmed for want of " + string(v.Waiting)
	default:
		text += ", unconfirmed"
	}
	return text + ")"
}
