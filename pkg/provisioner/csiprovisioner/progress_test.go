package csiprovisioner

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// wantProgress compares what is told, but for the times.
func (w *world) wantProgress(want ...string) {
	w.t.Helper()
	got := []string{}
	for _, p := range w.p.Progress() {
		got = append(got, fmt.Sprintf("%s %s %s %s", p.Claim, p.UID, p.PersistentVolume, p.State))
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		w.t.Errorf("progress (-want +got):\n%s", diff)
	}
}

// TestProgressOfAVolume through all its states, in this process and the next, which
// knows since when too.
func TestProgressOfAVolume(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(began)
	w := newWorld(t, func(c *Config) { c.Clock = clock }, secretOf("sys", "s", canary))
	w.wantProgress()
	is := func(state State) { w.t.Helper(); w.wantProgress("ns/data uid-1 pvc-uid-1 " + string(state)) }
	w.journal.put = func(string, string) error {
		w.wantProgress() // it is not in the cluster yet
		return nil
	}
	during := StateSent
	answer := answered(codes.DeadlineExceeded)
	w.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		is(during)
		if answer != nil {
			return nil, answer
		}
		return w.driver.make(req), nil
	}
	o := options(claim(), class(named("s", "sys")))
	w.fails(o, provisioner.ProvisioningInBackground, "DeadlineExceeded")
	is(StateInDoubt)
	during = StateSentAgain
	w.fails(o, provisioner.ProvisioningInBackground, "DeadlineExceeded")
	is(StateInDoubt)

	clock.SetTime(began.Add(time.Hour))
	w.restart()
	is(StateInDoubt)
	if got := w.p.Progress()[0].Since; !got.Equal(began) {
		t.Errorf("since %v, want %v", got, began)
	}
	answer = unsent()
	w.fails(o, provisioner.ProvisioningNoChange, "Unavailable")
	is(StateInDoubt)
	answer = nil
	w.made(o)
	is(StateMade)
	w.p.Settle("uid-1")
	w.wantProgress()
}

// TestProgressOfAStray that cannot be deleted: it is in doubt.
func TestProgressOfAStray(t *testing.T) {
	w := newWorld(t, nil)
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", CapacityBytes: 1}}, nil
	}
	w.driver.remove = func(*csi.DeleteVolumeRequest) error { return answered(codes.Internal) }
	w.fails(options(claim(), class(nil)), provisioner.ProvisioningInBackground, "deleting volume v again")
	w.wantProgress("ns/data uid-1 pvc-uid-1 InDoubt")
}

// TestProgressIsSorted, the oldest first, and what does not tell since when before
// all.
func TestProgressIsSorted(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(began)
	w := newWorld(t, func(c *Config) { c.Clock = clock })
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, answered(codes.Aborted) }
	for i, name := range []string{"z", "b", "a", "c"} {
		if i < 3 { // the last two are begun at once
			clock.SetTime(began.Add(time.Duration(i) * time.Minute))
		}
		w.fails(options(claim(func(c *v1.PersistentVolumeClaim) { c.Name, c.UID = name, types.UID("uid-"+name) }), class(nil)), provisioner.ProvisioningInBackground, "Aborted")
	}
	w.journal.records["uid-0"] = `{"newer":true,"claim":{"namespace":"ns","name":"newer"}}`
	w.restart()
	w.wantProgress("ns/newer uid-0  Unreadable", "ns/z uid-z pvc-uid-z InDoubt", "ns/b uid-b pvc-uid-b InDoubt", "ns/a uid-a pvc-uid-a InDoubt", "ns/c uid-c pvc-uid-c InDoubt")
}

// TestProgressTellsNoParameter, nor anything else of a request or of a record that
// cannot be read.
func TestProgressTellsNoParameter(t *testing.T) {
	w := newWorld(t, nil, secretOf("sys", "s", canary))
	parameters := named("s", "sys")
	parameters["password"] = canary
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, answered(codes.Aborted) }
	w.fails(options(claim(), class(parameters)), provisioner.ProvisioningInBackground, "Aborted")
	if !strings.Contains(w.journal.records["uid-1"], canary) {
		t.Fatal("the record does not have the parameter, so that this test cannot fail")
	}
	w.journal.records["uid-2"] = `{"claim":{"namespace":"` + canary + `","name":"` + canary + ` with spaces"}}`
	w.journal.records["uid-3"] = `{"claim":{"namespace":"ns","name":"n"},"volume":{},"request":{"name":"x","parameters":{"a":` + `{"` + canary + `":1}}}}`
	w.restart()
	page, err := json.Marshal(w.p.Progress())
	if err != nil || strings.Contains(string(page), canary) {
		t.Errorf("%v, %s", err, page)
	}
	w.wantProgress(" uid-2  Unreadable", "ns/n uid-3  Unreadable", "ns/data uid-1 pvc-uid-1 InDoubt")
	if _, err := decodeIntent("uid-3", w.journal.records["uid-3"]); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("the error is %v", err)
	}
	for len(w.events.Events) > 0 {
		if e := <-w.events.Events; strings.Contains(e, canary) {
			t.Errorf("the event is %s", e)
		}
	}
}

// TestUnreadableRecordsAreCountedAndTold once for each ConfigMap, and their claims
// left alone.
func TestUnreadableRecordsAreCountedAndTold(t *testing.T) {
	count := func(r metrics.KubeRegistry, want int) {
		t.Helper()
		text := fmt.Sprintf("# HELP ha_sidecar_provisioner_journal_unreadable_records [ALPHA] Records of the journal that this version cannot read: they are kept, and their claims left alone.\n# TYPE ha_sidecar_provisioner_journal_unreadable_records gauge\nha_sidecar_provisioner_journal_unreadable_records %d\n", want)
		if err := testutil.GatherAndCompare(r, strings.NewReader(text)); err != nil {
			t.Error(err)
		}
	}
	registry := metrics.NewKubeRegistry()
	w := newWorld(t, func(c *Config) { c.Registry = registry })
	count(registry, 0)
	w.journal.records["uid-4"], w.journal.records["uid-3"] = "garbage", `{"newer":true}`
	w.journal.records["uid-5"] = recordOf(t, "1Gi")
	w.journal.records["uid-5"] = strings.ReplaceAll(w.journal.records["uid-5"], "uid-1", "uid-5")
	page := func(name string) v1.ObjectReference {
		return v1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "csi", Name: name}
	}
	w.journal.unread = []journal.Unread{
		{Key: "uid-1", ConfigMap: page("journal-1"), Why: "it is binary data"},
		{Key: "uid-2", ConfigMap: *w.journal.Page("uid-3"), Why: "it is binary data"}, // one event with the others there
		{Key: "uid-5", ConfigMap: page("copy"), Why: "it is a copy"},                  // which can be read elsewhere
	}
	registry = metrics.NewKubeRegistry()
	w.cfg.Registry = registry
	if begun := w.restart(); len(begun) != 1 || begun[0].UID != "uid-5" {
		t.Errorf("begun is %v", begun)
	}
	count(registry, 4)
	var events []string
	for len(w.events.Events) > 0 {
		events = append(events, <-w.events.Events)
	}
	const advice = "Their claims are left alone, for the volumes may exist: for each, run the version that wrote it, or look for the volume at the driver and, with all sidecars stopped, delete the key"
	want := []string{
		"Warning JournalUnreadable Records that this version cannot read, and that are kept: 3, the first under the key uid-2. " + advice,
		"Warning JournalUnreadable Records that this version cannot read, and that are kept: 1, the first under the key uid-1. " + advice,
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	w.fails(options(claim(), class(nil)), provisioner.ProvisioningNoChange, "cannot read")
	w.wantCalls(0, 0)
	// Any source may be what it is a copy of.
	if !w.p.Needs(copyOf("snap").Ref) {
		t.Error("a source is not needed though a volume of it may be on its way")
	}
}

// TestMetricsOfTwoProvisioners in one registry are a mistake that New tells.
func TestMetricsOfTwoProvisioners(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Registry = metrics.NewKubeRegistry() })
	if _, err := New(w.cfg); err == nil || errors.Unwrap(err) == nil || !strings.Contains(err.Error(), "registering metrics") {
		t.Errorf("New() = %v", err)
	}
}
