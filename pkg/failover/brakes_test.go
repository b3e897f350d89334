package failover

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestLimit(t *testing.T) {
	for _, tc := range []struct {
		share    string
		carriers int
		want     int
	}{
		{"20%", 0, 1}, {"20%", 1, 1}, {"20%", 2, 1}, {"20%", 3, 1}, {"20%", 9, 1}, {"20%", 10, 2}, {"20%", 14, 2},
		{"90%", 2, 1}, {"90%", 3, 1}, {"90%", 4, 1}, {"90%", 5, 2}, {"50%", 10, 4}, {"99%", 100, 49},
		{"100%", 3, -1}, {"1%", 10, 1}, {"3", 10, 3}, {"3", 6, 2}, {"100", 10, 4},
	} {
		if got := limit(intstr.Parse(tc.share), tc.carriers); got != tc.want {
			t.Errorf("%s of %d nodes: %d may fail, want %d", tc.share, tc.carriers, got, tc.want)
		}
	}
}

// TestWhatCounts names what makes a node count for the breaker.
func TestWhatCounts(t *testing.T) {
	nodes := []string{"node n1", "node n2", "node n3", "node n4", "node n5"}
	for _, tc := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{"nothing", nil, nil},
		{"not Ready", []string{"node n2 not-ready"}, []string{"n2"}},
		{"not Ready, without the driver", []string{"node n2 not-ready without-driver"}, nil},
		{"held", []string{"node n2 held"}, []string{"n2"}},
		{"confirmed", []string{"verdict a n3"}, []string{"n3"}},
		{"twice on one node, held and not Ready", []string{"verdict a n3", "verdict b n3", "node n3 held not-ready"}, []string{"n3"}},
		{"suspect", []string{"verdict a n3 suspect=1m"}, []string{"n3"}},
		{"unconfirmed", []string{"verdict a n3 unconfirmed"}, nil},
		{"degraded", []string{"verdict a n3 state=Degraded"}, nil},
		{"everywhere", []string{"verdict a everywhere"}, nil},
		{"a node that is gone", []string{"verdict a n9"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newWorld(nodes...).add(tc.lines...).decide()
			if !slices.Equal(d.Brake.Failing, tc.want) {
				t.Errorf("%v count, want %v", d.Brake.Failing, tc.want)
			}
		})
	}
}

// TestAllVolumesAbnormalAtOnce is an outage of the array, or of its API, that
// makes every volume look inaccessible from its node: nothing may move, and all
// is forgotten once it has passed.
func TestAllVolumesAbnormalAtOnce(t *testing.T) {
	w := newWorld()
	for i := range 10 {
		w.add(fmt.Sprintf("node n%d", i), fmt.Sprintf("volume v%d", i),
			fmt.Sprintf("pod p-%d on=n%d uses=v%d", i, i, i), fmt.Sprintf("attached v%d n%d", i, i),
			fmt.Sprintf("verdict v%d n%d", i, i))
	}
	for range 5 {
		w.now = w.now.Add(time.Minute)
		d := w.decide()
		for _, a := range d.Answers {
			if a.Action != ActionWait || a.Primary().Code != CodeBreakerOpen {
				t.Fatalf("%s: %s %v", a.PV, a.Action, codes(a))
			}
		}
		if !d.Brake.Open || len(d.Answers) != 10 {
			t.Fatalf("open %t, %d answers", d.Brake.Open, len(d.Answers))
		}
	}
	for i := range 10 {
		w.add(fmt.Sprintf("remove verdict v%d n%d", i, i))
	}
	if d := w.decide(); !d.Brake.Open || d.Look != w.now.Add(w.policy.StormCooldown) {
		t.Fatalf("right after the storm: %+v, look %s", d.Brake, d.Look)
	}
	w.now = w.now.Add(w.policy.StormCooldown)
	if d := w.decide(); d.Brake.Open || len(d.Answers) != 0 {
		t.Fatalf("after the cooldown: %+v", d)
	}
}

// TestStormStopsGrantedMove: the first node of a storm may have passed before
// the storm was seen. Its walk asks again, and must be told no.
func TestStormStopsGrantedMove(t *testing.T) {
	w := newWorld(append(base(), "volume b", "pod b-0 on=n2 uses=b", "attached b n2")...)
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionMove {
		t.Fatalf("first: %s %v", a.Action, codes(a))
	}
	w.add("verdict b n2 unconfirmed age=0s")
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionWait || a.Primary().Code != CodeStormSuspected {
		t.Fatalf("while n2 is about to fail: %s %v", a.Action, codes(a))
	}
	w.add("verdict b n2")
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionWait || a.Primary().Code != CodeBreakerOpen {
		t.Fatalf("once n2 fails: %s %v", a.Action, codes(a))
	}
}

// TestStaleSuspicionBlocksNobody: a stored status that is never confirmed, as
// of a kubelet that died, counts for a while only: for as long as a failure may
// take to be confirmed.
func TestStaleSuspicionBlocksNobody(t *testing.T) {
	for age, want := range map[string]Action{"61s": ActionWait, "99s": ActionWait, "100s": ActionMove} {
		w := newWorld(append(base(), "verdict b n2 unconfirmed age="+age)...)
		w.policy.StormWindow = 100 * time.Second
		if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != want {
			t.Errorf("%s: %s %v", age, a.Action, codes(a))
		}
	}
}

func TestRate(t *testing.T) {
	w := newWorld("node n1", "node n2", "node n3", "policy moves-per-minute=3")
	for i := range 5 {
		w.add(fmt.Sprintf("volume v%d", i), fmt.Sprintf("pod p-%d on=n1 uses=v%d", i, i),
			fmt.Sprintf("attached v%d n1", i), fmt.Sprintf("verdict v%d n1", i))
	}
	moves := func() (moved []string) {
		for _, a := range w.decide().Answers {
			if a.Action == ActionMove {
				moved = append(moved, a.PV)
			} else if a.Primary().Code != CodeRateLimited || !a.Look.After(w.now) || a.Look.After(w.now.Add(time.Minute)) {
				t.Errorf("%s: %v, look %s", a.PV, codes(a), a.Look)
			}
		}
		return moved
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {0, 3}, {59 * time.Second, 3}, {time.Second, 5}, {time.Hour, 5}} {
		w.now = w.now.Add(step.after)
		if got := moves(); len(got) != step.want {
			t.Fatalf("after %s: %v move, want %d", w.now.Sub(noon), got, step.want)
		}
	}
}

// TestLargeClosureGoesAlone: more pods in one closure than the rate allows in a
// minute must not wait for ever.
func TestLargeClosureGoesAlone(t *testing.T) {
	w := newWorld("node n1", "node n2", "node n3", "policy moves-per-minute=2", "volume big modes=RWX", "volume small")
	w.add("pod s-0 on=n1 uses=small", "attached small n1", "attached big n1", "verdict small n1")
	for i := range 5 {
		w.add(fmt.Sprintf("pod big-%d on=n1 uses=big", i))
	}
	w.decide()
	w.now = w.now.Add(time.Second)
	w.add("verdict big n1")
	if a, _ := answerTo(w.decide(), "big", "n1"); a.Action != ActionWait {
		t.Fatalf("within the minute: %s %v", a.Action, codes(a))
	}
	w.now = w.now.Add(time.Minute)
	if a, _ := answerTo(w.decide(), "big", "n1"); a.Action != ActionMove {
		t.Fatalf("after it: %s %v", a.Action, codes(a))
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Free: 3, Initial: time.Minute, Max: 30 * time.Minute}
	for moves, want := range []time.Duration{0, 0, 0, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 30 * time.Minute} {
		if got := b.after(moves); got != want {
			t.Errorf("after %d moves: %s, want %s", moves, got, want)
		}
	}
	if got := b.after(1 << 20); got != b.Max {
		t.Errorf("after very many moves: %s", got)
	}
}

// TestRecreatedPodsAreNotMovedInALoop reports the volume inaccessible from
// wherever its pod is made again: a few moves, then fewer and fewer.
func TestRecreatedPodsAreNotMovedInALoop(t *testing.T) {
	w := newWorld("node n0", "node n1", "node n2", "volume data", "policy max-failing-nodes=100%")
	moves, incarnation := 0, 0
	for second := range 3600 {
		w.now = noon.Add(time.Duration(second) * time.Second)
		node := fmt.Sprintf("n%d", incarnation%2)
		w.add(fmt.Sprintf("pod db-0 on=%s uses=data uid=%d", node, incarnation),
			fmt.Sprintf("attached data %s uid=va-%d", node, incarnation), "verdict data "+node)
		if a, _ := answerTo(w.decide(), "data", node); a.Action == ActionMove {
			moves++
			incarnation++
			w.add("remove verdict data "+node, "remove attached data "+node)
		}
	}
	// Three free, then after 1, 3, 7, 15 and 31 minutes.
	if moves != 8 {
		t.Errorf("%d moves within the hour, want 8", moves)
	}
}

// TestBackoffIsForgotten: long after the last move a workload starts anew.
func TestBackoffIsForgotten(t *testing.T) {
	w := newWorld(base()...)
	w.memory.Workloads = map[Workload]History{{Owner: "owner-db", Member: "db-0"}: {Moves: 9, Last: noon.Add(-time.Minute)}}
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Primary().Code != CodeBackoff {
		t.Fatalf("%s %v", a.Action, codes(a))
	}
	w.now = noon.Add(2 * w.policy.Backoff.Max)
	w.decide()
	if len(w.memory.Workloads) != 1 || w.memory.Workloads[Workload{Owner: "owner-db", Member: "db-0"}].Moves != 10 {
		t.Fatalf("%+v", w.memory.Workloads)
	}
	w.add("remove verdict data n1")
	w.now = w.now.Add(2*w.policy.Backoff.Max + 1)
	w.decide()
	if len(w.memory.Workloads) != 0 || len(w.memory.Grants) != 0 {
		t.Fatalf("still remembered: %+v", w.memory)
	}
}

// TestWorkloadOf: what comes back after a move has to be known again.
func TestWorkloadOf(t *testing.T) {
	for _, tc := range []struct {
		one, two string
		same     bool
	}{
		{"pod db-0 uid=1 uses=a", "pod db-0 uid=2 uses=a", true},
		{"pod db-0 uid=1 uses=a", "pod db-1 uid=2 uses=b", false},
		{"pod web-x uid=1 uses=a owner=ReplicaSet/web", "pod web-y uid=2 uses=a owner=ReplicaSet/web", true},
		{"pod web-x uid=1 uses=a owner=ReplicaSet/web", "pod web-y uid=2 uses=a owner=ReplicaSet/api", false},
		{"pod x uid=1 uses=a owner=none", "pod x uid=2 uses=a owner=none", false},
	} {
		one, two := newWorld(tc.one), newWorld(tc.two)
		var workloads []Workload
		for _, w := range []*world{one, two} {
			for _, pod := range w.pods {
				workloads = append(workloads, workloadOf(&podView{pod: pod}))
			}
		}
		if same := workloads[0] == workloads[1]; same != tc.same {
			t.Errorf("%q and %q: same workload %t, want %t", tc.one, tc.two, same, tc.same)
		}
	}
}

// TestIdleAttachment: a failing volume whose pod is gone is Kubernetes' to
// detach. What it leaves attached for long is fenced on a node that is not Ready,
// and else shown.
func TestIdleAttachment(t *testing.T) {
	for node, last := range map[string]Code{"node n1": CodeNotDetached, "node n1 not-ready": CodeConfirmedInaccessible} {
		w := newWorld(append(base(), "remove pod db-0", node)...)
		for _, step := range []struct {
			after time.Duration
			want  Code
		}{{0, CodeDetaching}, {29 * time.Second, CodeDetaching}, {time.Second, last}, {time.Hour, last}} {
			w.now = w.now.Add(step.after)
			if a, _ := answerTo(w.decide(), "data", "n1"); a.Primary().Code != step.want {
				t.Fatalf("%s, after %s: %s %v", node, w.now.Sub(noon), a.Action, codes(a))
			}
		}
		// It recovers, and fails again later: the time starts anew.
		w.add("remove verdict data n1")
		w.decide()
		w.add("verdict data n1")
		if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionWait {
			t.Fatalf("%s, the second time: %s %v", node, a.Action, codes(a))
		}
	}
}

// TestAskedPodIsNotAVeto: a pod that is stopping because we asked is still part
// of the closure.
func TestAskedPodIsNotAVeto(t *testing.T) {
	w := newWorld(base()...)
	w.decide()
	w.add("pod db-0 on=n1 uses=data stop=30s", "node n1 held")
	if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionMove || len(a.Closure.Pods) != 1 {
		t.Fatalf("%s %v", a.Action, codes(a))
	}
}

// TestRateOutlivesTheLeader: what another process has moved within the minute
// counts, by the holds that it left.
func TestRateOutlivesTheLeader(t *testing.T) {
	record := func(ages ...time.Duration) string {
		rec := volume.HoldRecord{Time: metav1.NewTime(noon.Add(-ages[0]))}
		for i, age := range ages {
			held := volume.HeldVolume{PV: fmt.Sprint("v", i)}
			if i > 0 {
				held.Time = metav1.NewTime(noon.Add(-age))
			}
			rec.Volumes = append(rec.Volumes, held)
		}
		value, err := rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	s := time.Second
	for _, tc := range []struct {
		name   string
		record string
		led    time.Duration
		look   time.Duration // zero: it moves
	}{
		{"no holds", "", 15 * s, 0},
		{"an unreadable one", "{", 15 * s, 0},
		{"less than the rate", record(20 * s), 15 * s, 0},
		{"as much as the rate", record(50*s, 20*s), 15 * s, 10 * s},
		{"one long ago", record(time.Hour, 20*s), 15 * s, 0},
		{"our own, which are remembered", record(5*s, 4*s), 15 * s, 0},
		{"ahead of our clock", record(-time.Hour, -time.Hour), 15 * s, 0},
		{"more than the rate", record(50*s, 40*s, 30*s), 15 * s, 20 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(append(base(), "policy moves-per-minute=2 max-failing-nodes=100%", "node n4 held")...)
			w.nodes["n4"].Annotations[volume.HoldKey(testDriver)] = tc.record
			w.started = w.now.Add(-tc.led)
			a, _ := answerTo(w.decide(), "data", "n1")
			if tc.look == 0 {
				if a.Action != ActionMove {
					t.Fatalf("%s %v", a.Action, codes(a))
				}
				return
			}
			if a.Primary().Code != CodeRateLimited || !a.Look.Equal(w.now.Add(tc.look)) {
				t.Fatalf("%s %v, look again in %s", a.Action, codes(a), a.Look.Sub(w.now))
			}
			w.now = a.Look
			if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != ActionMove {
				t.Fatalf("later: %s %v", a.Action, codes(a))
			}
		})
	}
}

// TestPodThatCameLater: what one pod has said moves those that were to go with
// it, and none that came when it was gone.
func TestPodThatCameLater(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lines []string
		want  Action
		code  Code
	}{
		{"the pod is still going", []string{"pod db-0 on=n1 uses=data stop=30s"}, ActionMove, CodeConfirmedInaccessible},
		{"it is gone, its neighbour is not", []string{"remove pod db-0"}, ActionMove, CodeConfirmedInaccessible},
		{"both are gone", []string{"remove pod db-0", "remove pod web-0"}, ActionWait, CodeDetaching},
		{"its successor has come", []string{"pod db-0 on=n1 uses=data uid=new"}, ActionReport, CodeSuspect},
		{"a third one has come", []string{"remove pod db-0", "pod db-1 on=n1 uses=data"}, ActionReport, CodeSuspect},
		{"its successor says so as well", []string{"pod db-0 on=n1 uses=data uid=new", "verdict data n1"}, ActionMove, CodeConfirmedInaccessible},
		{"attached anew", []string{"attached data n1 uid=new"}, ActionReport, CodeSuspect},
		{"detached", []string{"remove attached data n1"}, ActionReport, CodeSuspect},
		{"another leader", nil, ActionReport, CodeSuspect},
	} {
		w := newWorld(append(base(), "volume data modes=RWX", "pod web-0 on=n1 uses=data owner=Deployment/web")...)
		w.decide()
		if tc.lines == nil {
			w.memory = Memory{}
		}
		w.add("verdict data n1 suspect=10m").add(tc.lines...)
		if a, _ := answerTo(w.decide(), "data", "n1"); a.Action != tc.want || a.Primary().Code != tc.code {
			t.Errorf("%s: %s %v", tc.name, a.Action, codes(a))
		}
	}
}

// TestNoTimeInThePast: an answer that waits for a time that has passed would be
// a hot loop.
func TestNoTimeInThePast(t *testing.T) {
	w := newWorld(append(base(), "verdict data n1 suspect=-1m")...)
	if d := w.decide(); !d.Look.After(w.now) {
		t.Fatalf("look at %s, now is %s", d.Look, w.now)
	}
}

// TestPolicyMessages: every message names the flag.
func TestPolicyMessages(t *testing.T) {
	for flag, spoil := range map[string]func(*Policy){
		"--failover-mode=go":             func(p *Policy) { p.Mode = "go" },
		"--fence=wood":                   func(p *Policy) { p.Fence = "wood" },
		"--max-failing-nodes=some":       func(p *Policy) { p.MaxFailingNodes = intstr.Parse("some") },
		"--max-failing-nodes=0%":         func(p *Policy) { p.MaxFailingNodes = intstr.Parse("0%") },
		"--max-failing-nodes=101%":       func(p *Policy) { p.MaxFailingNodes = intstr.Parse("101%") },
		"--max-failing-nodes=0":          func(p *Policy) { p.MaxFailingNodes = intstr.Parse("0") },
		"--storm-cooldown=-1s":           func(p *Policy) { p.StormCooldown = -time.Second },
		"the storm window=-1s":           func(p *Policy) { p.StormWindow = -time.Second },
		"--hold-off=-1s":                 func(p *Policy) { p.HoldOff = -time.Second },
		"--moves-per-minute=0":           func(p *Policy) { p.MovesPerMinute = 0 },
		"--workload-free-moves=0":        func(p *Policy) { p.Backoff.Free = 0 },
		"--workload-backoff-initial=-1s": func(p *Policy) { p.Backoff.Initial = -time.Second },
		"--workload-backoff-max=1s":      func(p *Policy) { p.Backoff.Max = time.Second },
		"the driver's name":              func(p *Policy) { p.DriverName = "" },
	} {
		p := DefaultPolicy(testDriver)
		if err := p.Validate(); err != nil {
			t.Fatalf("defaults: %v", err)
		}
		spoil(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestGrantLastsAsLongAsItsFailure: a walk may take long; what it moves is
// counted once.
func TestGrantLastsAsLongAsItsFailure(t *testing.T) {
	w := newWorld(base()...)
	for w.decide(); w.now.Before(noon.Add(time.Hour)); w.now = w.now.Add(lookAgain) {
		w.decide()
	}
	if h := w.memory.Workloads[Workload{Owner: "owner-db", Member: "db-0"}]; h.Moves != 1 {
		t.Errorf("counted %d times", h.Moves)
	}
}
