package csiprovisioner

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// TestRepliesThatWillNotDo: what the driver made is deleted again, with the
// secrets, and the claim is tried anew.
func TestRepliesThatWillNotDo(t *testing.T) {
	for name, c := range map[string]struct {
		reply *csi.Volume
		text  string
	}{
		"too small":        {&csi.Volume{VolumeId: "v", CapacityBytes: 1<<30 - 1, ContentSource: copyOf("snap").Content}, "made a volume of 1073741823 bytes, fewer than the 1073741824 that the claim asks for"},
		"negative":         {&csi.Volume{VolumeId: "v", CapacityBytes: -1, ContentSource: copyOf("snap").Content}, "made a volume of -1 bytes"},
		"not a copy":       {&csi.Volume{VolumeId: "v", CapacityBytes: 1 << 30}, "it does not say content_source"},
		"on no node ever":  {&csi.Volume{VolumeId: "v", ContentSource: copyOf("snap").Content, AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"not a key": "x"}}}}, `"not a key" is no label key`},
		"at no value ever": {&csi.Volume{VolumeId: "v", ContentSource: copyOf("snap").Content, AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"k": "not a value"}}}}, `"not a value"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, secretOf("sys", "s", canary))
			w.caps.Topology, w.sources.answer = true, copyOf("snap")
			w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
				return &csi.CreateVolumeResponse{Volume: c.reply}, nil
			}
			w.fails(options(claim(), class(named("s", "sys"))), provisioner.ProvisioningFinished, c.text)
			if got := w.driver.deleted; len(got) != 1 || got[0].VolumeId != "v" || got[0].Secrets["password"] != canary {
				t.Errorf("deleted %v", got)
			}
			w.wantJournal()
			if held, released := w.protection.counts(); held != 1 || released != 1 {
				t.Errorf("the source was held %d times and released %d times", held, released)
			}
		})
	}
}

// TestReplyThatNoServerTakes: a PersistentVolume of it could never be saved, and
// neither could the volume be deleted when its claim goes. The text says what is
// wrong, and is no larger than people read.
func TestReplyThatNoServerTakes(t *testing.T) {
	large := strings.Repeat("x", 2<<20)
	var keys []*csi.Topology
	for i := range 10000 {
		keys = append(keys, &csi.Topology{Segments: map[string]string{fmt.Sprintf("not a key %d", i): "x"}})
	}
	for name, c := range map[string]struct {
		reply *csi.Volume
		text  string
	}{
		"volume ID":      {&csi.Volume{VolumeId: large}, "more than the 1048576"},
		"context":        {&csi.Volume{VolumeId: "v", VolumeContext: map[string]string{"k": large}}, "more than the 1048576"},
		"topology":       {&csi.Volume{VolumeId: "v", AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"k": large}}}}, "more than the 1048576"},
		"wrong topology": {&csi.Volume{VolumeId: "v", AccessibleTopology: keys}, `"not a key 0" is no label key`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.caps.Topology = true
			w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
				return &csi.CreateVolumeResponse{Volume: c.reply}, nil
			}
			_, state, err := w.provision(options(claim(), class(nil)))
			if err == nil || state != provisioner.ProvisioningFinished {
				t.Fatalf("state %s, error %v", state, err)
			}
			if text := err.Error(); !strings.Contains(text, c.text) || len(text) > 4<<10 {
				t.Errorf("error of %d bytes: %.300s", len(text), text)
			}
			if got := w.driver.deleted; len(got) != 1 || got[0].VolumeId != c.reply.VolumeId {
				t.Errorf("%d volumes deleted", len(got))
			}
			w.wantJournal()
		})
	}
}

func TestRepliesThatWillDo(t *testing.T) {
	for name, c := range map[string]struct {
		bytes int64
		want  string
	}{
		"unknown size": {0, "1Gi"}, "as asked": {1 << 30, "1Gi"}, "a byte more": {1<<30 + 1, "1073741825"}, "twice": {2 << 30, "2Gi"},
	} {
		w := newWorld(t, nil)
		w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
			return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", CapacityBytes: c.bytes, AccessibleTopology: []*csi.Topology{{}}}}, nil
		}
		pv := w.made(options(claim(), class(nil)))
		if size := pv.Spec.Capacity[v1.ResourceStorage]; size.String() != c.want {
			t.Errorf("%s: the capacity is %s, want %s", name, size.String(), c.want)
		}
	}
}

// TestReplyWithoutAVolume: there may be one, and the request is made again until
// the driver says which.
func TestReplyWithoutAVolume(t *testing.T) {
	for name, reply := range map[string]*csi.CreateVolumeResponse{"no reply": nil, "no volume": {}, "no ID": {Volume: &csi.Volume{CapacityBytes: 1 << 30}}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return reply, nil }
			o := options(claim(), class(nil))
			w.fails(o, provisioner.ProvisioningInBackground, "without a volume ID; this is a fault of the driver")
			w.wantJournal("uid-1")
			w.driver.create = nil
			w.made(abandoned(o))
			w.wantCalls(2, 0)
		})
	}
}

// TestDriversContextIsItsOwn: also where a key is like ours.
func TestDriversContextIsItsOwn(t *testing.T) {
	w := newWorld(t, nil)
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", VolumeContext: map[string]string{attributeIdentity: "the driver's"}}}, nil
	}
	pv := w.made(options(claim(), class(nil)))
	if got := pv.Spec.CSI.VolumeAttributes[attributeIdentity]; got != "the driver's" {
		t.Errorf("the driver gets %q back", got)
	}
}

// TestStrayThatCannotBeDeletedYet converges, also when the claim goes meanwhile and
// the process ends.
func TestStrayThatCannotBeDeletedYet(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			w := newWorld(t, nil)
			w.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
				reply := w.driver.make(req)
				reply.Volume.CapacityBytes = 1
				return reply, nil
			}
			failures := 2
			w.driver.remove = func(*csi.DeleteVolumeRequest) error {
				if failures--; failures >= 0 {
					return answered(codes.Unavailable)
				}
				return nil
			}
			o := options(claim(), class(nil))
			w.fails(o, provisioner.ProvisioningInBackground, "deleting volume id-of-pvc-uid-1 again")
			w.wantJournal("uid-1")
			if restart {
				w.restart()
			}
			w.fails(abandoned(o), provisioner.ProvisioningInBackground, "it is tried again")
			w.fails(abandoned(o), provisioner.ProvisioningFinished, "is deleted again")
			w.wantJournal()
			if left := w.driver.left(); len(left) > 0 {
				t.Errorf("volumes %v are left", left)
			}
		})
	}
}

// TestStrayThatIsSomebodysVolume is not deleted, whatever the driver says of it.
func TestStrayThatIsSomebodysVolume(t *testing.T) {
	w := newWorld(t, nil)
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "precious", CapacityBytes: 1}}, nil
	}
	if err := w.pvs.Add(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "precious"},
	}}}); err != nil {
		t.Fatal(err)
	}
	w.fails(options(claim(), class(nil)), provisioner.ProvisioningFinished, "volume precious is that of PersistentVolume old, and so is not deleted")
	w.wantCalls(1, 0)
	w.wantJournal()
}

// TestOutcomesOfCreate has every code, for a first call and a later one, with and
// without topology and a selected node.
func TestOutcomesOfCreate(t *testing.T) {
	const finished, background, reschedule = provisioner.ProvisioningFinished, provisioner.ProvisioningInBackground, provisioner.ProvisioningReschedule
	type want struct{ first, later provisioner.ProvisioningState }
	wants := map[codes.Code]want{
		codes.Canceled: {background, background}, codes.Unknown: {background, background}, codes.InvalidArgument: {finished, finished},
		codes.DeadlineExceeded: {background, background}, codes.NotFound: {finished, background}, codes.AlreadyExists: {finished, background},
		codes.PermissionDenied: {finished, background}, codes.ResourceExhausted: {finished, finished}, codes.FailedPrecondition: {finished, background},
		codes.Aborted: {background, background}, codes.OutOfRange: {finished, finished}, codes.Unimplemented: {finished, background},
		codes.Internal: {background, background}, codes.Unavailable: {background, background}, codes.DataLoss: {background, background},
		codes.Unauthenticated: {finished, background}, codes.Code(77): {background, background},
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if _, ok := wants[code]; !ok {
			t.Errorf("code %s is missing", code)
		}
	}
	for code, c := range wants {
		for _, topological := range []bool{false, true} {
			for _, node := range []string{"", "node-1"} {
				for _, tried := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s topology %v node %q tried %v", code, topological, node, tried), func(t *testing.T) {
						w := newWorld(t, nil)
						w.caps.Topology, w.topology.answer, w.sources.answer = topological, zones("a"), copyOf("snap")
						o := onNode(options(claim(), class(nil)), node)
						expect := c.first
						if tried {
							expect = c.later
							w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, errors.New("no status") }
							w.fails(o, background, "no status")
						}
						if code == codes.ResourceExhausted && topological && node != "" {
							expect = reschedule
						}
						w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, answered(code) }
						err := w.fails(o, expect, "the driver says")
						var late provisioner.Infeasible
						if got := errors.As(err, &late); got != (code == codes.InvalidArgument) {
							t.Errorf("it is tried again late: %v", got)
						}
						if expect == background {
							w.wantJournal("uid-1")
						} else {
							w.wantJournal()
						}
						if held, released := w.protection.counts(); held != 1 || (released == 1) != (expect != background) {
							t.Errorf("the source was held %d times and released %d times", held, released)
						}
					})
				}
			}
		}
	}
}

// TestCallThatWasNotSent leaves a first attempt as if it had not been, and a later
// one as it was.
func TestCallThatWasNotSent(t *testing.T) {
	w := newWorld(t, nil)
	o := options(claim(), class(nil))
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, unsent() }
	w.fails(o, provisioner.ProvisioningNoChange, "Unavailable")
	w.wantJournal()
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return nil, answered(codes.DeadlineExceeded)
	}
	w.fails(o, provisioner.ProvisioningInBackground, "DeadlineExceeded")
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, unsent() }
	w.fails(o, provisioner.ProvisioningNoChange, "Unavailable")
	w.wantJournal("uid-1")
}

// TestPanicOfACallProvesNothing: what was begun stays begun.
func TestPanicOfACallProvesNothing(t *testing.T) {
	w := newWorld(t, nil)
	o := options(claim(), class(nil))
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { panic("bug") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _, _ = w.provision(o)
	}()
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, unsent() }
	w.fails(o, provisioner.ProvisioningNoChange, "Unavailable")
	w.wantJournal("uid-1")
}

// TestNodeThatWasChosenMeanwhile is not taken off the claim for another's lack of
// room.
func TestNodeThatWasChosenMeanwhile(t *testing.T) {
	w := newWorld(t, nil)
	w.caps.Topology, w.topology.answer = true, zones("a")
	o := options(claim(), class(nil))
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, answered(codes.Aborted) }
	w.fails(onNode(o, "node-1"), provisioner.ProvisioningInBackground, "Aborted")
	w.restart()
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return nil, answered(codes.ResourceExhausted)
	}
	w.fails(onNode(o, "node-2"), provisioner.ProvisioningFinished, "ResourceExhausted")
}

// TestAbandonedWithoutItsSecret: the driver is asked all the same, and its refusal
// is none of the request that was begun.
func TestAbandonedWithoutItsSecret(t *testing.T) {
	w := newWorld(t, nil, secretOf("sys", "s", canary))
	o := options(claim(), class(named("s", "sys")))
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return nil, answered(codes.DeadlineExceeded)
	}
	w.fails(o, provisioner.ProvisioningInBackground, "DeadlineExceeded")
	if err := w.client.CoreV1().Secrets("sys").Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.fails(o, provisioner.ProvisioningNoChange, "secret sys/s for the driver")
	w.wantCalls(1, 0)
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return nil, answered(codes.InvalidArgument)
	}
	w.fails(abandoned(o), provisioner.ProvisioningInBackground, "called without secrets, since secret sys/s")
	w.wantJournal("uid-1")
	w.driver.create = nil
	w.made(abandoned(o))
	if last := w.driver.created[2]; last.Secrets != nil {
		t.Errorf("secrets %v", last.Secrets)
	}
	if slices.ContainsFunc(w.journal.ever, func(s string) bool { return strings.Contains(s, canary) }) {
		t.Error("a secret is in the journal")
	}
}
