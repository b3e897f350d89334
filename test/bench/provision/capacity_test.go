package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
)

func objectOf(segment, class string) storagev1.CSIStorageCapacity {
	return storagev1.CSIStorageCapacity{
		StorageClassName: class,
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{segmentKey: segment}},
	}
}

func TestCompareObjects(t *testing.T) {
	told := map[csidriver.Item]int{{Segment: "a", Class: "x"}: 3, {Segment: "b", Class: "x"}: 1}
	a, b := objectOf("a", "x"), objectOf("b", "x")
	for name, tc := range map[string]struct {
		all  []storagev1.CSIStorageCapacity
		want Objects
	}{
		"one of each":        {[]storagev1.CSIStorageCapacity{a, b}, Objects{Total: 2, Told: 2}},
		"one is missing":     {[]storagev1.CSIStorageCapacity{b}, Objects{Total: 1, Told: 2, Missing: 1}},
		"a second and third": {[]storagev1.CSIStorageCapacity{a, b, a, a}, Objects{Total: 4, Told: 2, Duplicates: 2}},
		"never told":         {[]storagev1.CSIStorageCapacity{a, b, objectOf("a", "y"), {StorageClassName: "x"}}, Objects{Total: 4, Told: 2, Strange: 2}},
		"none":               {nil, Objects{Told: 2, Missing: 2}},
	} {
		if got := compareObjects(tc.all, told); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestDepthOf(t *testing.T) {
	const others = "# TYPE workqueue_depth gauge\nworkqueue_depth{name=\"claims\"} 7\nworkqueue_adds_total{name=\"csistoragecapacity\"} 9\n"
	if depth, err := depthOf([]byte(others + "workqueue_depth{name=\"csistoragecapacity\"} 1.2e+03\nup 1\n")); err != nil || depth != 1200 {
		t.Errorf("%d, %v, want 1200", depth, err)
	}
	for _, bad := range []string{others, others + "workqueue_depth{name=\"csistoragecapacity\"} many\n"} {
		if depth, err := depthOf([]byte(bad)); err == nil {
			t.Errorf("a depth of %d is read from\n%s", depth, bad)
		}
	}
	var d Depth
	for _, n := range []int{3, 9, 4} {
		d.add(n)
	}
	if d != (Depth{Samples: 3, Most: 9, Last: 4}) {
		t.Errorf("%+v", d)
	}
}

// capacityRun is one as it should be, of 10 items.
func capacityRun(s side, threads int) *CapacityRun {
	return &CapacityRun{
		Side: s.title, side: s, Threads: threads, Calls: 21, CPU: 1.25, Memory: usage.Memory{Resident: 40, Peak: 60},
		Objects: Objects{Total: 10, Told: 10}, Depth: Depth{Samples: 30, Most: 10, Last: 2},
	}
}

func TestJudgeCapacity(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*CapacityRun)
		missed string
	}{
		"as it should be":    {func(*CapacityRun) {}, ""},
		"nothing happened":   {func(r *CapacityRun) { r.Objects = Objects{} }, "items that the driver has told"},
		"missing":            {func(r *CapacityRun) { r.Objects.Missing = 1 }, "have no object"},
		"a second one":       {func(r *CapacityRun) { r.Objects.Duplicates = 1 }, "second objects"},
		"one of nothing":     {func(r *CapacityRun) { r.Objects.Strange = 1 }, "never told"},
		"more than there is": {func(r *CapacityRun) { r.Depth.Most = 11 }, "workqueue, of 10"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Phase{Name: "CAPACITY", Capacity: &Capacity{Segments: 2, Classes: 5, Items: 10, Runs: []*CapacityRun{
				capacityRun(ours, 1), capacityRun(theirs, 1), capacityRun(ours, 10), capacityRun(theirs, 10),
			}}}
			tc.change(p.Capacity.Runs[2]) // one run is enough
			for _, peer := range []int{1, 3} {
				p.Capacity.Runs[peer].Depth.Most = 5000 // no bar of theirs
			}
			p.judge()
			if len(p.Bars) != 10 {
				t.Errorf("%d bars, want 10", len(p.Bars))
			}
			var missed []string
			for _, bar := range p.Bars {
				if !bar.Met {
					missed = append(missed, bar.What)
				}
			}
			if tc.missed == "" && len(missed) > 0 || tc.missed != "" && (len(missed) != 1 || !strings.Contains(missed[0], "10 threads") || !strings.Contains(missed[0], tc.missed)) {
				t.Errorf("missed are %q, want %q", missed, tc.missed)
			}
		})
	}
}

// TestCapacityRequests: those of the side, and of its time alone.
func TestCapacityRequests(t *testing.T) {
	r := capacityRun(ours, 1)
	r.Begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.Ended = r.Begun.Add(time.Minute)
	request := func(agent string, after time.Duration) audit.Request {
		q := audit.Request{Stage: "ResponseComplete", Verb: "create", UserAgent: agent + "/v1", Received: metav1.NewMicroTime(r.Begun.Add(after))}
		q.ObjectRef = &struct{ Resource, Subresource string }{Resource: "csistoragecapacities"}
		return q
	}
	c := &Capacity{Segments: 2, Classes: 5, Items: 10, Runs: []*CapacityRun{r}}
	c.count([]audit.Request{
		request(ours.name, 0), request(ours.name, time.Second), request(theirs.name, time.Second), request(ours.name, 2*time.Minute),
	})
	if r.Requests.Total != 2 {
		t.Errorf("%+v, want 2 writes", r.Requests)
	}
	var out strings.Builder
	(&Phase{Capacity: c}).print(&out)
	for _, want := range []string{"10 items: 2 segments x 5 classes", "GetCapacity calls                                    21", "1.25", "writes                                                2"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestFlagsOfEachSide: TUNED compares with the peer as drivers ship it, and ours
// has no flag that limits it.
func TestFlagsOfEachSide(t *testing.T) {
	flags := map[string]map[string][]string{}
	for _, s := range settings {
		flags[s.name] = s.flags
	}
	for _, tc := range []struct {
		setting  string
		who      side
		flag     string
		expected bool
	}{
		{"TUNED", ours, "--worker-threads=100", true},
		{"TUNED", ours, "--kube-api-qps=100", false},
		{"TUNED", theirs, "--kube-api-qps=100", true},
		{"TUNED", theirs, "--kube-api-burst=200", true},
		{"UNLIMITED", ours, "--kube-api-qps=1000", true},
		{"UNLIMITED", theirs, "--kube-api-qps=1000", true},
		{"CAPACITY", ours, "--enable-capacity", true},
		{"CAPACITY", theirs, "--enable-capacity", true},
	} {
		if found := slices.Contains(flags[tc.setting][tc.who.key], tc.flag); found != tc.expected {
			t.Errorf("%s in %s: %s is there: %t", tc.who.key, tc.setting, tc.flag, found)
		}
	}
}
