package hacontroller

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// ready is a view of a walk on a Ready node, held, with one running pod.
func ready(change ...func(*view)) view {
	v := view{
		now: t0, nodeReady: true, held: true, canFence: true,
		pods: []podView{{uid: "p"}}, attachments: 2, evictDeadline: time.Minute,
	}
	for _, f := range change {
		f(&v)
	}
	return v
}

func askedFor(d time.Duration) func(*view) { return func(v *view) { v.askedSince = t0.Add(-d) } }
func failed(v *view)                       { v.nodeReady = false }
func terminating(v *view)                  { v.pods[0].terminating = true }
func noFence(v *view)                      { v.canFence = false }
func noPods(v *view)                       { v.pods = nil }
func written(n int) func(*view)            { return func(v *view) { v.recorded = n } }
func acked(n int) func(*view)              { return func(v *view) { v.recorded, v.fenced = 2, n } }
func refusedBy(r Reason, in time.Duration) func(*view) {
	return func(v *view) { v.pods[0].refusal, v.pods[0].next = r, t0.Add(in) }
}

func TestDecide(t *testing.T) {
	unheld := func(v *view) { v.held = false }
	override := func(v *view) { v.overridePDB = true }
	for name, tc := range map[string]struct {
		view view
		want decision
	}{
		"nothing attached":        {ready(func(v *view) { v.attachments = 0 }), decision{step: stepDone}},
		"an attachment unknown":   {ready(func(v *view) { v.missing = true }), decision{stepRefuse, ReasonAttachmentUnknown, time.Second}},
		"a veto":                  {ready(unheld, func(v *view) { v.veto = ReasonDaemonSet }), decision{step: stepRefuse, reason: ReasonDaemonSet}},
		"a pause between rounds":  {ready(unheld, func(v *view) { v.notBefore = t0.Add(time.Hour) }), decision{step: stepWait, wait: time.Hour}},
		"hold first, ready":       {ready(unheld), decision{step: stepHold}},
		"hold first, failed":      {ready(unheld, failed), decision{step: stepHold}},
		"failed without a fence":  {ready(unheld, failed, noFence), decision{step: stepRefuse, reason: ReasonNoFence}},
		"failed":                  {ready(failed), decision{step: stepRecord}},
		"failed without pods":     {ready(failed, noPods), decision{step: stepRecord}},
		"ask":                     {ready(), decision{step: stepAsk}},
		"drained":                 {ready(noPods), decision{step: stepDrained}},
		"stopping":                {ready(askedFor(time.Second), terminating), decision{step: stepWait, wait: 59 * time.Second}},
		"ask again, not yet":      {ready(askedFor(time.Second), refusedBy(ReasonDisruptionBudget, 2*time.Second)), decision{step: stepWait, wait: 2 * time.Second}},
		"ask again":               {ready(askedFor(time.Second), refusedBy(ReasonDisruptionBudget, 0)), decision{step: stepAsk}},
		"eviction under way":      {ready(askedFor(time.Second), func(v *view) { v.pods[0].asking = true }), decision{step: stepWait, wait: time.Minute - time.Second}},
		"failed while asked":      {ready(askedFor(time.Second), terminating, failed), decision{step: stepRecord}},
		"overdue":                 {ready(askedFor(time.Minute), terminating), decision{step: stepRecord}},
		"overdue without a fence": {ready(askedFor(time.Minute), terminating, noFence), decision{step: stepEnd, reason: ReasonNotStopped}},
		"budget at the deadline":  {ready(askedFor(time.Minute), refusedBy(ReasonDisruptionBudget, 0)), decision{step: stepEnd, reason: ReasonDisruptionBudget}},
		"budget overridden":       {ready(askedFor(time.Minute), refusedBy(ReasonDisruptionBudget, 0), override), decision{step: stepRecord}},
		"two budgets overridden":  {ready(askedFor(time.Minute), refusedBy(ReasonSeveralBudgets, 0), override), decision{step: stepRecord}},
		"override without fence":  {ready(askedFor(time.Minute), refusedBy(ReasonDisruptionBudget, 0), override, noFence), decision{step: stepEnd, reason: ReasonDisruptionBudget}},
		"throttled to the end":    {ready(askedFor(time.Minute), refusedBy(ReasonThrottled, 0), override), decision{step: stepEnd, reason: ReasonThrottled}},
		"never answered":          {ready(askedFor(time.Minute)), decision{step: stepEnd, reason: ReasonEvictionFailed}},

		"half a record":           {ready(written(1)), decision{step: stepRecord}},
		"record without a fencer": {ready(written(2), noFence), decision{step: stepRefuse, reason: ReasonNoFence}},
		"record, hold lost":       {ready(written(2), unheld), decision{step: stepHold}},
		"fence":                   {ready(written(2)), decision{step: stepFence}},
		"half fenced":             {ready(acked(1), failed), decision{step: stepFence}},
		"no veto counts any more": {ready(acked(2), func(v *view) { v.veto = ReasonOwnerless }), decision{step: stepPods}},
		"no pause counts":         {ready(acked(2), func(v *view) { v.notBefore = t0.Add(time.Hour) }), decision{step: stepPods}},
		"terminating with grace":  {ready(acked(2), terminating), decision{step: stepPods}},
		"finalizers":              {ready(acked(2), terminating, func(v *view) { v.pods[0].forced = true }), decision{step: stepRefuse, reason: ReasonFinalizers}},
		"attachments":             {ready(acked(2), noPods), decision{step: stepAttachments}},
		"one deleted":             {ready(acked(2), noPods, func(v *view) { v.deleting = 1 }), decision{step: stepAttachments}},
		"all deleted":             {ready(acked(2), noPods, func(v *view) { v.deleting = 2 }), decision{step: stepWait}},
		"recorded and gone":       {ready(acked(2), func(v *view) { v.attachments, v.recorded, v.fenced = 0, 0, 0 }), decision{step: stepDone}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide(tc.view); got != tc.want {
				t.Errorf("decide = %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestFenceWait(t *testing.T) {
	v := ready(written(2), func(v *view) { v.nextFence = t0.Add(4 * time.Second) })
	if got := fenceWait(v); got != 4*time.Second {
		t.Errorf("waits %v for the fence, want 4s", got)
	}
	v.pods[0].next = t0.Add(time.Second)
	if got := fenceWait(v); got != time.Second {
		t.Errorf("waits %v for the eviction, want 1s", got)
	}
	v.nodeReady = false
	if got := fenceWait(v); got != 4*time.Second {
		t.Errorf("waits %v on a failed node, want 4s", got)
	}
}

func drawView(t *rapid.T) view {
	ago := func(name string) time.Time {
		if rapid.Bool().Draw(t, name+" set") {
			return t0.Add(time.Duration(rapid.IntRange(-90, 90).Draw(t, name)) * time.Second)
		}
		return time.Time{}
	}
	v := view{
		now: t0, evictDeadline: time.Minute,
		nodeReady: rapid.Bool().Draw(t, "ready"), held: rapid.Bool().Draw(t, "held"),
		canFence: rapid.Bool().Draw(t, "canFence"), overridePDB: rapid.Bool().Draw(t, "override"),
		missing: rapid.Bool().Draw(t, "missing"), attachments: rapid.IntRange(0, 3).Draw(t, "attachments"),
		askedSince: ago("asked"), notBefore: ago("notBefore"), nextFence: ago("nextFence"),
		veto: rapid.SampledFrom([]Reason{"", "", ReasonDaemonSet}).Draw(t, "veto"),
	}
	v.recorded = rapid.IntRange(0, v.attachments).Draw(t, "recorded")
	v.fenced = rapid.IntRange(0, v.recorded).Draw(t, "fenced")
	v.deleting = rapid.IntRange(0, v.attachments).Draw(t, "deleting")
	for range rapid.IntRange(0, 3).Draw(t, "pods") {
		p := podView{terminating: rapid.Bool().Draw(t, "terminating"), next: ago("next")}
		p.forced = p.terminating && rapid.Bool().Draw(t, "forced")
		p.refusal = rapid.SampledFrom([]Reason{"", ReasonDisruptionBudget, ReasonThrottled}).Draw(t, "refusal")
		v.pods = append(v.pods, p)
	}
	return v
}

// What must never be decided, whatever the world looks like.
func TestDecideNever(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		d := decide(v)
		violated := func(why string) { t.Fatalf("%+v decided for %+v: %s", d, v, why) }
		switch d.step {
		case stepPods:
			if v.recorded == 0 || v.fenced < v.attachments || !v.held {
				violated("a pod is deleted without record, fence and hold")
			}
		case stepAttachments:
			if v.recorded == 0 || v.fenced < v.attachments || len(v.pods) > 0 {
				violated("an attachment is deleted under a pod or unfenced")
			}
		case stepAsk:
			if !v.nodeReady || !v.held || v.veto != "" {
				violated("a pod is asked without a kubelet, a hold, or against a veto")
			}
		case stepRecord:
			if v.recorded > 0 {
				break
			}
			if !v.canFence || !v.held || v.veto != "" || v.missing {
				violated("a record that could not be followed")
			}
			for _, p := range v.pods {
				if v.nodeReady && !p.terminating && !v.overridePDB {
					violated("a pod of a Ready node that was never evicted")
				}
			}
		case stepEnd:
			if v.recorded > 0 || d.reason == "" {
				violated("an end after the record, or without a reason")
			}
		case stepRefuse:
			if d.reason == "" {
				violated("a refusal without a reason")
			}
		}
		if d.wait < 0 {
			violated("negative wait")
		}
	})
}
