package health

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestLeases(t *testing.T) {
	l := newLeases(20 * time.Second)
	if l.observe("n1", t0, t0); l.fresh("n1", t0) {
		t.Fatal("fresh at first sight")
	}
	if l.observe("n1", t0, t0.Add(time.Second)) || l.fresh("n1", t0.Add(time.Second)) {
		t.Fatal("the same renewTime again counts as a renewal")
	}
	// The remote clock is an hour off; it does not matter.
	seen := t0.Add(10 * time.Second)
	if !l.observe("n1", t0.Add(-time.Hour), seen) {
		t.Fatal("another renewTime is no renewal")
	}
	for after, want := range map[time.Duration]bool{0: true, 20 * time.Second: true, 20*time.Second + 1: false} {
		if got := l.fresh("n1", seen.Add(after)); got != want {
			t.Errorf("fresh after %v: %v, want %v", after, got, want)
		}
	}
	if l.forget("n1"); l.fresh("n1", seen) {
		t.Fatal("fresh without a Lease")
	}
	if l.fresh("n2", seen) {
		t.Fatal("an unknown node is fresh")
	}
}

func TestInboxHoldsAnItemOnce(t *testing.T) {
	b := newInbox()
	one, two := item{kind: kindPod, name: "a"}, item{kind: kindPod, name: "b"}
	for _, i := range []item{one, two, one} {
		b.put(i)
	}
	<-b.ready
	if diff := cmp.Diff([]item{one, two}, b.take(), cmp.AllowUnexported(item{})); diff != "" {
		t.Fatal(diff)
	}
	b.put(one)
	<-b.ready
	if got := b.take(); len(got) != 1 {
		t.Fatalf("taken items are not put again: %v", got)
	}
}

func TestVolumesIndex(t *testing.T) {
	v := newVolumes()
	v.set("pv-1", "h")
	v.set("pv-2", "h")
	if diff := cmp.Diff([]string{"pv-1", "pv-2"}, v.of("h")); diff != "" {
		t.Fatal(diff)
	}
	if lost := v.set("pv-1", ""); lost != "" {
		t.Fatalf("lost %q while another volume stands for it", lost)
	}
	if lost := v.set("pv-2", "other"); lost != "h" {
		t.Fatalf("lost %q, want h", lost)
	}
	if lost := v.set("unknown", ""); lost != "" {
		t.Fatalf("lost %q", lost)
	}
}

func TestAttachmentsIndex(t *testing.T) {
	a := newAttachments()
	key := volume.Key{Handle: "h", Node: "n1"}
	a.put("va-1", attachment{key: key, attached: true})
	a.put("va-2", attachment{key: volume.Key{Handle: "h", Node: "n2"}, attached: false})
	a.put("va-3", attachment{key: volume.Key{Handle: "g", Node: "n1"}, attached: true})
	if diff := cmp.Diff([]string{"n1"}, a.nodesOf("h")); diff != "" {
		t.Fatal(diff)
	}
	if n := len(a.on("n1")); n != 2 {
		t.Fatalf("%d volumes on n1, want 2", n)
	}
	a.put("va-4", attachment{key: key, attached: true})
	if _, _, last := a.remove("va-1"); last {
		t.Fatal("last, though va-4 keeps the volume on the node")
	}
	if old, known, last := a.remove("va-4"); !known || !last || old.key != key {
		t.Fatalf("removed %v %v %v", old, known, last)
	}
	if _, known, _ := a.remove("va-4"); known {
		t.Fatal("removed twice")
	}
}

func TestConditionsForTheServer(t *testing.T) {
	condition := func(kind volume.ConditionKind, reason, message string) volume.Condition {
		return volume.Condition{Kind: kind, Reason: reason, Message: message}
	}
	got := apiConditions([]volume.Condition{
		condition(volume.Inaccessible, "ArrayDown", "gone"),
		condition(volume.Inaccessible, "ArrayDown", "said twice"),
		condition(volume.Degraded, "ArrayDown", "another status"),
		condition(volume.UnknownCondition, "Poltergeist", "left out"),
		condition(volume.Abnormal, "", "legacy"),
		condition(volume.DataLoss, "9 lives: no-more,", "\xff"),
	})
	want := []v1.VolumeHealthCondition{
		{Status: "Inaccessible", Reason: "ArrayDown", Message: "gone"},
		{Status: "Degraded", Reason: "ArrayDown", Message: "another status"},
		{Status: "Degraded", Reason: "VolumeConditionAbnormal", Message: "legacy"},
		{Status: "DataLoss", Reason: "lives:nomore", Message: "?"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// Whatever a driver says, the server takes what is made of it.
func TestConditionsForTheServerKeepItsLimits(t *testing.T) {
	kinds := []volume.ConditionKind{volume.DataLoss, volume.Inaccessible, volume.Degraded, volume.Abnormal, volume.UnknownCondition, ""}
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) volume.Condition {
			return volume.Condition{
				Kind:    rapid.SampledFrom(kinds).Draw(t, "kind"),
				Reason:  rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9_,:]{0,400}`)).Draw(t, "reason"),
				Message: rapid.OneOf(rapid.StringN(0, 1200, -1), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "message"),
			}
		})
		list := apiConditions(rapid.SliceOfN(draw, 0, 40).Draw(t, "conditions"))
		if len(list) > maxConditions {
			t.Fatalf("%d conditions", len(list))
		}
		seen := map[string]bool{}
		for _, c := range list {
			if problems := utilvalidation.IsValidConditionReason(c.Reason); len(c.Reason) > maxReasonBytes || len(problems) > 0 {
				t.Fatalf("reason %q: %v", c.Reason, problems)
			}
			if len(c.Message) > maxMessageBytes || !utf8.ValidString(c.Message) {
				t.Fatalf("message %q", c.Message)
			}
			if id := string(c.Status) + "/" + c.Reason; seen[id] {
				t.Fatalf("twice: %s", id)
			} else {
				seen[id] = true
			}
		}
	})
}

func TestTruncateCutsBetweenRunes(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"é", 1, ""}, {"日本", 5, "日"},
	} {
		if got := truncate(c.in, c.limit); got != c.want {
			t.Errorf("truncate(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
}

func TestNotices(t *testing.T) {
	everywhere, node := volume.Key{Handle: "vol"}, volume.Key{Handle: "vol", Node: "n1"}
	status := func(key volume.Key, state volume.State, change func(*Status)) Status {
		s := Status{Verdict: volume.Verdict{Key: key, State: state, Reason: "Why", Message: "because"}}
		if change != nil {
			change(&s)
		}
		return s
	}
	confirmed := func(s *Status) { s.Confirmed = true }
	suspect := func(s *Status) { s.Confirmed, s.SuspectUntil = true, t0.Add(time.Minute) }
	seenWell := func(s *Status) { s.Source = volume.SourcePodStatus }
	polled := func(s *Status) { s.Confirmed, s.Source = true, volume.SourceController }
	for _, c := range []struct {
		name   string
		before []Status
		now    Status
		at     time.Time
		want   string // part of the message, "" for no event
	}{
		{"not confirmed yet", nil, status(node, volume.StateInaccessible, nil), t0, ""},
		{"inaccessible from a node", nil, status(node, volume.StateInaccessible, confirmed), t0, "inaccessible from node n1 (Why): because. Pods that use it"},
		{"inaccessible everywhere", nil, status(everywhere, volume.StateInaccessible, confirmed), t0, "inaccessible from every node (Why): because. Moving pods cannot help"},
		{"data loss", nil, status(everywhere, volume.StateDataLoss, confirmed), t0, "losing data"},
		{"degraded", nil, status(everywhere, volume.StateDegraded, confirmed), t0, "degraded (Why): because. Nothing is moved"},
		{"legacy", nil, status(everywhere, volume.StateDegraded, func(s *Status) {
			s.Confirmed, s.Conditions = true, []volume.Condition{{Kind: volume.Abnormal}}
		}), t0, "does not tell what is wrong"},
		{"no lease", nil, status(node, volume.StateInaccessible, func(s *Status) { s.Waiting = WaitingForLease }), t0, "dead kubelet"},
		{"no read", nil, status(node, volume.StateInaccessible, func(s *Status) { s.Waiting = WaitingForRead }), t0, "could not be read"},
		{"said already", []Status{status(node, volume.StateInaccessible, confirmed)}, status(node, volume.StateInaccessible, confirmed), t0, ""},
		{"worse now", []Status{status(node, volume.StateDegraded, confirmed)}, status(node, volume.StateInaccessible, confirmed), t0, "inaccessible"},
		{"suspect", []Status{status(node, volume.StateInaccessible, confirmed)}, status(node, volume.StateInaccessible, suspect), t0, ""},
		{"recovered", []Status{status(node, volume.StateInaccessible, confirmed)}, status(node, volume.StateHealthy, seenWell), t0, "healthy again from node n1"},
		{"recovered from every node", []Status{status(everywhere, volume.StateDegraded, polled)}, status(everywhere, volume.StateHealthy, nil), t0, "healthy again"},
		{"not said any more", []Status{status(node, volume.StateDegraded, confirmed)}, status(node, volume.StateHealthy, nil), t0, "Nobody says any more that the volume is degraded from node n1"},
		{"recovered unseen", []Status{status(node, volume.StateInaccessible, nil)}, status(node, volume.StateHealthy, nil), t0, ""},
		{"suspicion lapsed", []Status{status(node, volume.StateInaccessible, confirmed), status(node, volume.StateInaccessible, suspect)}, status(node, volume.StateHealthy, nil), t0.Add(time.Minute), "no longer suspected"},
		{"suspicion cleared", []Status{status(node, volume.StateInaccessible, confirmed), status(node, volume.StateInaccessible, suspect)}, status(node, volume.StateHealthy, seenWell), t0, "healthy again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, last := newAnnouncer(nil), Status{}
			for _, s := range c.before {
				a.noticeOf(transition{from: last, to: s}, t0)
				last = s
			}
			n, ok := a.noticeOf(transition{from: last, to: c.now}, c.at)
			if ok != (c.want != "") || !strings.Contains(n.message, c.want) {
				t.Fatalf("event %v %+v, want %q", ok, n, c.want)
			}
			wantReason, wantType := EventAbnormal, v1.EventTypeWarning
			if !c.now.Abnormal() {
				wantReason, wantType = EventNormal, v1.EventTypeNormal
				if c.name == "suspicion lapsed" || c.name == "not said any more" {
					wantReason = EventUnknown
				}
			}
			if ok && (n.reason != wantReason || n.eventType != wantType) {
				t.Fatalf("event %+v, want %s %s", n, wantType, wantReason)
			}
		})
	}
}

func TestExpandLegacySpeaksForAttachedNodesOnly(t *testing.T) {
	abnormal := volume.Condition{Kind: volume.Abnormal, Reason: "R", Message: "m"}
	readings := []volume.Reading{
		{Key: volume.Key{Handle: "bad"}, Conditions: []volume.Condition{abnormal}},
		{Key: volume.Key{Handle: "good"}},
		{Key: volume.Key{Handle: "new dialect"}, Conditions: []volume.Condition{{Kind: volume.Inaccessible}}},
	}
	got := expandLegacy(readings, func(h volume.Handle) []string {
		return map[volume.Handle][]string{"bad": {"n1", "n2"}, "good": {"n3"}, "new dialect": {"n4"}}[h]
	})
	want := append(append([]volume.Reading{}, readings...),
		volume.Reading{Key: volume.Key{Handle: "bad", Node: "n1"}, Conditions: []volume.Condition{{Kind: volume.Inaccessible, Reason: "R", Message: "m"}}},
		volume.Reading{Key: volume.Key{Handle: "bad", Node: "n2"}, Conditions: []volume.Condition{{Kind: volume.Inaccessible, Reason: "R", Message: "m"}}},
		volume.Reading{Key: volume.Key{Handle: "good", Node: "n3"}},
	)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}
