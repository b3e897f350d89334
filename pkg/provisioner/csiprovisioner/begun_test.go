package csiprovisioner

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// TestSameRequestWhateverHasChanged: once a volume may exist, the same request is
// made until its outcome is known, in this process and the next.
func TestSameRequestWhateverHasChanged(t *testing.T) {
	for name, change := range map[string]func(w *world, o *provisioner.VolumeOptions){
		"nothing": func(*world, *provisioner.VolumeOptions) {},
		"claim": func(_ *world, o *provisioner.VolumeOptions) {
			o.PVC = claim(sized("5Gi"), modes(v1.ReadWriteMany), block, func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} })
		},
		"claim gone": func(_ *world, o *provisioner.VolumeOptions) { o.Abandoned = true },
		"class": func(_ *world, o *provisioner.VolumeOptions) {
			o.StorageClass = class(map[string]string{"type": "tape"})
		},
		"class broken": func(_ *world, o *provisioner.VolumeOptions) {
			o.StorageClass = class(map[string]string{parameterPrefix: ""})
		},
		"class gone":            func(_ *world, o *provisioner.VolumeOptions) { o.StorageClass = nil },
		"node":                  func(w *world, o *provisioner.VolumeOptions) { o.SelectedNode, w.topology.answer = "node-2", zones("c") },
		"node gone":             func(w *world, _ *provisioner.VolumeOptions) { w.topology.err = topology.ErrNodeGone },
		"no node":               func(_ *world, o *provisioner.VolumeOptions) { o.SelectedNode = "" },
		"source":                func(w *world, _ *provisioner.VolumeOptions) { w.sources.answer = copyOf("other") },
		"source gone":           func(w *world, _ *provisioner.VolumeOptions) { w.sources.err = &source.Refused{What: "gone"} },
		"source cannot be kept": func(w *world, _ *provisioner.VolumeOptions) { w.protection.err = errors.New("it is being deleted") },
		"attributes class gone": func(w *world, _ *provisioner.VolumeOptions) {
			if err := w.client.StorageV1().VolumeAttributesClasses().Delete(w.t.Context(), "gold", metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
		},
		"capabilities": func(w *world, _ *provisioner.VolumeOptions) { w.caps = Capabilities{} },
		"default filesystem": func(w *world, _ *provisioner.VolumeOptions) {
			w.cfg.DefaultFSType, w.cfg.ExtraCreateMetadata, w.cfg.Identity = "btrfs", false, "other"
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", name, restart), func(t *testing.T) {
				w := newWorld(t, func(c *Config) { c.ExtraCreateMetadata = true }, attributesClassOf(testDriver), secretOf("sys", "s", canary))
				w.caps = Capabilities{CreateDelete: true, Topology: true, Modify: true}
				w.topology.answer, w.sources.answer = zones("a", "b"), copyOf("snap")
				o := onNode(options(claim(gold), class(named("s", "sys"), func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr(v1.PersistentVolumeReclaimRetain) })), "node-1")
				for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Aborted, codes.PermissionDenied} {
					w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, answered(code) }
					w.fails(o, provisioner.ProvisioningInBackground, code.String())
					change(w, &o)
					if restart {
						if begun := w.restart(); len(begun) != 1 || begun[0].UID != "uid-1" || begun[0].Name != "data" || begun[0].Namespace != "ns" || *begun[0].Spec.StorageClassName != "fast" {
							t.Fatalf("begun is %v", begun)
						}
					}
					if !w.p.Needs(copyOf("snap").Ref) {
						t.Error("the source is not needed any more")
					}
					if name == "attributes class gone" {
						change = func(*world, *provisioner.VolumeOptions) {}
					}
				}
				w.driver.create = nil
				pv := w.made(o)
				for i, req := range w.driver.created {
					if !proto.Equal(req, w.driver.created[0]) {
						t.Errorf("request %d is %v, the first was %v", i, req, w.driver.created[0])
					}
				}
				if w.driver.created[0].Secrets["password"] != canary {
					t.Error("called without secrets")
				}
				if pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain || pv.Spec.StorageClassName != "fast" || pv.Spec.CSI.VolumeAttributes[attributeIdentity] != "me" || *pv.Spec.VolumeAttributesClassName != "gold" {
					t.Errorf("PersistentVolume %+v", pv.Spec)
				}
				w.wantJournal("uid-1")
				w.p.Settle("uid-1")
				w.p.Settle("uid-1")
				w.wantJournal()
				// The next process did not hold it, and tells of its end all the same.
				if held, released := w.protection.counts(); held != 1 || released != 1 {
					t.Errorf("the source was held %d times and released %d times", held, released)
				}
				if w.p.Needs(copyOf("snap").Ref) {
					t.Error("the source is still needed")
				}
			})
		}
	}
}

// TestSecretIsReadForEachCall: it may have been rotated, and is kept nowhere.
func TestSecretIsReadForEachCall(t *testing.T) {
	w := newWorld(t, nil, secretOf("sys", "s", "old"))
	o := options(claim(), class(named("s", "sys")))
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, answered(codes.Aborted) }
	w.fails(o, provisioner.ProvisioningInBackground, "Aborted")
	if _, err := w.client.CoreV1().Secrets("sys").Update(t.Context(), secretOf("sys", "s", "new"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.driver.create = nil
	w.made(o)
	if got := w.driver.created[0].Secrets["password"] + " " + w.driver.created[1].Secrets["password"]; got != "old new" {
		t.Errorf("the secrets were %s", got)
	}
}

// TestNothingIsCalledBeforeItIsWrittenDown, by a journal that takes its time.
func TestNothingIsCalledBeforeItIsWrittenDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.sources.answer = copyOf("snap")
		acknowledge := make(chan struct{})
		w.journal.put = func(string, string) error {
			<-acknowledge
			return nil
		}
		var done sync.WaitGroup
		done.Go(func() { w.made(options(claim(), class(nil))) })
		synctest.Wait()
		w.wantCalls(0, 0)
		if held, _ := w.protection.counts(); held != 1 {
			t.Error("the source is not protected before the volume is begun")
		}
		close(acknowledge)
		done.Wait()
		w.wantCalls(1, 0)
	})
}

// TestJournalThatFails: no call, nothing held, and the claim is tried again.
func TestJournalThatFails(t *testing.T) {
	w := newWorld(t, nil)
	w.sources.answer = copyOf("snap")
	w.journal.put = func(string, string) error { return errors.New("forbidden") }
	w.fails(options(claim(), class(nil)), provisioner.ProvisioningNoChange, "writing down what is about to be created: forbidden")
	w.wantCalls(0, 0)
	if held, released := w.protection.counts(); held != 1 || released != 1 {
		t.Errorf("the source was held %d times and released %d times", held, released)
	}
	w.journal.put = nil
	w.made(options(claim(), class(nil)))
	w.wantCalls(1, 0)
}

// TestJournalThatCannotBeOpened: everything is needed until it is.
func TestJournalThatCannotBeOpened(t *testing.T) {
	w := newWorld(t, nil)
	p, err := New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.journal.opens = 1
	ref := copyOf("snap").Ref
	if _, err := p.Begun(t.Context(), nil); err == nil || !p.Needs(ref) {
		t.Errorf("error %v, the source is needed: %v", err, p.Needs(ref))
	}
	if _, err := p.Begun(t.Context(), nil); err != nil || p.Needs(ref) {
		t.Errorf("error %v, the source is needed: %v", err, p.Needs(ref))
	}
}

// recordOf is what an earlier leader wrote for a claim of another size.
func recordOf(t *testing.T, size string) string {
	t.Helper()
	w := newWorld(t, nil)
	w.made(options(claim(sized(size)), class(nil)))
	return w.journal.records["uid-1"]
}

// TestRecordsThatAreFoundLate are gone on with.
func TestRecordsThatAreFoundLate(t *testing.T) {
	w := newWorld(t, nil)
	var told []types.UID
	if _, err := w.p.Begun(t.Context(), func(c *v1.PersistentVolumeClaim) { told = append(told, c.UID) }); err != nil {
		t.Fatal(err)
	}
	record := recordOf(t, "3Gi")
	w.p.Found(t.Context(), map[string]string{"uid-1": record, "uid-2": "garbage"})
	if len(told) != 1 || told[0] != "uid-1" {
		t.Errorf("told of %v", told)
	}
	// Once more: nothing new.
	w.p.Found(t.Context(), map[string]string{"uid-1": record})
	if len(told) != 1 {
		t.Errorf("told of %v", told)
	}
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, unsent() }
	w.fails(options(claim(), class(nil)), provisioner.ProvisioningNoChange, "Unavailable")
	if got := w.driver.created[0].CapacityRange.RequiredBytes; got != 3<<30 {
		t.Errorf("%d bytes were asked for", got)
	}
	if w.p.begunCount() != 1 {
		t.Error("a volume that may exist was forgotten")
	}
}

// TestRecordThatIsFoundWhileTheClaimIsBegun: the earlier request counts, and is
// what the journal has in the end.
func TestRecordThatIsFoundWhileTheClaimIsBegun(t *testing.T) {
	for name, found := range map[string]string{"readable": recordOf(t, "3Gi"), "not": "garbage"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			once := sync.OnceFunc(func() { w.p.Found(t.Context(), map[string]string{"uid-1": found}) })
			w.journal.put = func(string, string) error {
				once()
				return nil
			}
			w.fails(options(claim(), class(nil)), provisioner.ProvisioningNoChange, "an earlier leader has begun the volume already")
			w.wantCalls(0, 0)
			if got := w.journal.records["uid-1"]; !strings.Contains(got, "3221225472") && got != found {
				t.Errorf("the journal has %s", got)
			}
			if name == "not" {
				w.fails(options(claim(), class(nil)), provisioner.ProvisioningNoChange, "cannot read")
				return
			}
			w.made(options(claim(), class(nil)))
			if got := w.driver.created[0].CapacityRange.RequiredBytes; got != 3<<30 {
				t.Errorf("%d bytes were asked for", got)
			}
		})
	}
}

// TestOwnIntentIsNotReplaced by one that an earlier leader wrote for the same claim.
func TestOwnIntentIsNotReplaced(t *testing.T) {
	w := newWorld(t, nil)
	o := options(claim(), class(nil))
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		w.p.Found(t.Context(), map[string]string{"uid-1": recordOf(t, "3Gi")})
		return nil, answered(codes.Aborted)
	}
	w.fails(o, provisioner.ProvisioningInBackground, "Aborted")
	w.driver.create = nil
	w.made(o)
	if !proto.Equal(w.driver.created[0], w.driver.created[1]) {
		t.Errorf("the requests were %v and %v", w.driver.created[0], w.driver.created[1])
	}
}

// TestManyAtOnce is for the race detector: claims are worked on side by side, while
// others ask.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.sources.answer = copyOf("snap")
	w.sources.asked = nil
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for j := range 20 {
				c := claim(func(c *v1.PersistentVolumeClaim) { c.UID = types.UID(fmt.Sprintf("uid-%d-%d", i, j)) })
				in := &intent{Claim: v1.ObjectReference{UID: c.UID}, Request: &csi.CreateVolumeRequest{Name: "n"}, Volume: &v1.PersistentVolume{}, Source: &copyOf("snap").Ref}
				if err := w.p.begin(t.Context(), in); err != nil {
					t.Error(err)
				}
				w.p.Needs(copyOf("snap").Ref)
				w.p.Found(t.Context(), map[string]string{string(c.UID) + "-x": "garbage"})
				if got, err := w.p.begun(c); got != in || err != nil {
					t.Errorf("%v, %v", got, err)
				}
				w.p.Settle(c.UID)
			}
		})
	}
	work.Wait()
	w.wantJournal()
	if n := w.p.begunCount(); n != 0 {
		t.Errorf("%d intents are left", n)
	}
}

func (p *Provisioner) begunCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.intents)
}

// TestNameThatAVolumeWasBegunWith is known to the next process, which may name
// volumes in another way, until it is settled.
func TestNameThatAVolumeWasBegunWith(t *testing.T) {
	w := newWorld(t, nil)
	if got := w.p.BegunAs("uid-1"); got != "" {
		t.Errorf("%q before it is begun", got)
	}
	o := options(claim(), class(nil))
	o.PVName = "vol-1"
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) { return nil, answered(codes.Aborted) }
	w.fails(o, provisioner.ProvisioningInBackground, "Aborted")
	w.restart()
	if got := w.p.BegunAs("uid-1"); got != "vol-1" {
		t.Errorf("%q in the next process", got)
	}
	w.driver.create = nil
	o.PVName = w.p.BegunAs("uid-1")
	if pv := w.made(o); pv.Name != "vol-1" {
		t.Errorf("PersistentVolume %s", pv.Name)
	}
	w.p.Settle("uid-1")
	if got := w.p.BegunAs("uid-1"); got != "" {
		t.Errorf("%q after it is settled", got)
	}
}

// TestRecordNeeds: a record of any process tells of its source, and one that says
// nothing that can be read may be of any.
func TestRecordNeeds(t *testing.T) {
	w := newWorld(t, nil)
	w.sources.answer = copyOf("snap")
	w.made(options(claim(), class(nil)))
	ref := copyOf("snap").Ref
	anew, other, kind := ref, ref, ref
	anew.UID, other.Name, kind.Kind = "another", "other", source.Claim
	for _, c := range []struct {
		record string
		ref    source.Ref
		want   bool
	}{
		{w.journal.records["uid-1"], ref, true},
		{w.journal.records["uid-1"], anew, true},
		{w.journal.records["uid-1"], other, false},
		{w.journal.records["uid-1"], kind, false},
		{recordOf(t, "1Gi"), ref, false},
		{`{"newer":true,"source":{"kind":"VolumeSnapshot","namespace":"ns","name":"snap","more":1}}`, ref, true},
		{`{"newer":true}`, ref, false},
		{"garbage", ref, true},
	} {
		if got := RecordNeeds(c.record, c.ref); got != c.want {
			t.Errorf("%s needs %v: %v", c.record, c.ref, got)
		}
	}
}
