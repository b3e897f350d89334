package provisioner

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// TestResume: what an earlier process has begun is brought to its end, whatever
// became of its claim meanwhile. Where the claim has gone the volume may have been
// used before, and its PersistentVolume deleted by hand: what is to be retained is
// retained.
func TestResume(t *testing.T) {
	mine := claim("claim-1", "uid-1-1", "class-1", ourName)
	class := storageClass("class-1", ourName, withPolicy(retain))
	boundTo := func(name string) *v1.PersistentVolumeClaim {
		c := mine.DeepCopy()
		c.Spec.VolumeName = name
		return c
	}
	for name, c := range map[string]struct {
		objects []runtime.Object
		// calls of Provision there are to be, the last of which says that the claim
		// has gone, and the policy of what is saved, if there is something.
		calls     int
		abandoned bool
		policy    v1.PersistentVolumeReclaimPolicy
	}{
		"claim as it was":                            {objects: []runtime.Object{class, mine}, calls: 1, policy: retain},
		"claim gone":                                 {objects: []runtime.Object{class}, calls: 1, abandoned: true, policy: retain},
		"claim and class gone":                       {calls: 1, abandoned: true, policy: del},
		"class gone":                                 {objects: []runtime.Object{mine}, calls: 1, policy: del},
		"another claim of its name":                  {objects: []runtime.Object{class, claim("claim-1", "other", "", "")}, calls: 1, abandoned: true, policy: retain},
		"bound to another volume":                    {objects: []runtime.Object{class, boundTo("other")}, calls: 1, abandoned: true, policy: retain},
		"saved already":                              {objects: []runtime.Object{class, mine, pv(savedName, v1.VolumeAvailable, retain, ourName, claimed("uid-1-1"))}, policy: retain},
		"saved already, and claim gone":              {objects: []runtime.Object{class, pv(savedName, v1.VolumeAvailable, retain, ourName, claimed("uid-1-1"))}, policy: retain},
		"saved and bound already":                    {objects: []runtime.Object{class, boundTo(savedName), pv(savedName, v1.VolumeBound, retain, ourName, claimed("uid-1-1"))}, policy: retain},
		"bound to it, and its PersistentVolume lost": {objects: []runtime.Object{class, boundTo(savedName)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{objects: c.objects, maker: &maker{begun: []*v1.PersistentVolumeClaim{mine.DeepCopy()}}, noResync: true})
				w.rest(5)
				asked := w.maker.asked()
				if len(asked) != c.calls || c.calls > 0 && asked[len(asked)-1].Abandoned != c.abandoned {
					t.Errorf("calls of Provision: %+v, want %d", asked, c.calls)
				}
				if got := w.maker.settledOf(); !slices.Equal(got, []types.UID{"uid-1-1"}) || len(w.inProgress()) != 0 {
					t.Errorf("settled %v, in progress %v", got, w.inProgress())
				}
				var policy v1.PersistentVolumeReclaimPolicy
				if v := w.pvs()[savedName]; v != nil {
					policy = v.Spec.PersistentVolumeReclaimPolicy
				}
				if policy != c.policy {
					t.Errorf("saved with policy %q, want %q", policy, c.policy)
				}
				if _, removed := w.maker.calls(); removed != 0 {
					t.Errorf("%d volumes deleted", removed)
				}
			})
		})
	}
}

// TestResumeComparesTheVolume: a PersistentVolume that has the name and names the
// claim, and that we did not provision, proves nothing. The request is made again:
// where it tells of another volume, that one goes and what is there stays.
func TestResumeComparesTheVolume(t *testing.T) {
	mine := claim("claim-1", "uid-1-1", "class-1", ourName)
	bound := claim("claim-1", "uid-1-1", "class-1", ourName, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = savedName })
	byHand := func(handle string) *v1.PersistentVolume {
		return pv(savedName, v1.VolumeBound, retain, "", csiVolume(ourName, handle), claimed("uid-1-1"))
	}
	for name, c := range map[string]struct {
		there *v1.PersistentVolume
		claim *v1.PersistentVolumeClaim
		calls int
		stray bool
	}{
		"ours":                                     {there: pv(savedName, v1.VolumeBound, del, ourName, csiVolume(ourName, "h"), claimed("uid-1-1")), claim: mine},
		"by hand, of the volume":                   {there: byHand("h"), claim: mine, calls: 1},
		"by hand, of the volume, bound":            {there: byHand("h"), claim: bound, calls: 1},
		"by hand, of another volume":               {there: byHand("other"), claim: mine, calls: 1, stray: true},
		"by hand, of another volume, bound":        {there: byHand("other"), claim: bound, calls: 1, stray: true},
		"by hand, of another volume, claim gone":   {there: byHand("other"), calls: 1, stray: true},
		"another provisioner's":                    {there: pv(savedName, v1.VolumeBound, del, otherName, csiVolume(otherName, "h"), claimed("uid-1-1")), claim: mine, calls: 1, stray: true},
		"signed by us, and another driver's":       {there: pv(savedName, v1.VolumeBound, del, ourName, csiVolume(otherName, "h"), claimed("uid-1-1")), claim: mine, calls: 1, stray: true},
		"signed by us, and another claim's volume": {there: pv(savedName, v1.VolumeBound, del, ourName, csiVolume(ourName, "other"), claimed("other")), claim: mine, calls: 1, stray: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []runtime.Object{storageClass("class-1", ourName), c.there}
				if c.claim != nil {
					objects = append(objects, c.claim)
				}
				m := csiMaker("h")
				m.begun = []*v1.PersistentVolumeClaim{mine.DeepCopy()}
				var deleted []string
				m.remove = func(v *v1.PersistentVolume) error {
					deleted = append(deleted, v.Spec.CSI.VolumeHandle)
					return nil
				}
				w := newWorld(t, setup{objects: objects, maker: m, noResync: true})
				w.rest(5)
				if made, _ := m.calls(); made != c.calls {
					t.Errorf("%d calls of Provision, want %d", made, c.calls)
				}
				if stray := len(deleted) == 1 && deleted[0] == "h"; stray != c.stray || len(deleted) > 1 {
					t.Errorf("deleted %v", deleted)
				}
				if v := w.pvs()[savedName]; v == nil || v.Spec.CSI.VolumeHandle != c.there.Spec.CSI.VolumeHandle {
					t.Errorf("what was there is now %+v", v)
				}
				if got := m.settledOf(); !slices.Equal(got, []types.UID{"uid-1-1"}) || len(w.inProgress()) != 0 {
					t.Errorf("settled %v, in progress %v", got, w.inProgress())
				}
			})
		})
	}
}

// TestResumeUnderTheNameItWasBegunWith: the earlier process named volumes in
// another way. The volume keeps its name, and is no second one.
func TestResumeUnderTheNameItWasBegunWith(t *testing.T) {
	mine := claim("claim-1", "uid-1-1", "class-1", ourName)
	saved := pv("vol-1", v1.VolumeBound, del, ourName, csiVolume(ourName, "h"), claimed("uid-1-1"))
	bound := claim("claim-1", "uid-1-1", "class-1", ourName, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "vol-1" })
	for name, c := range map[string]struct {
		objects []runtime.Object
		calls   int
	}{
		"saved and bound":     {objects: []runtime.Object{bound, saved}},
		"saved, not bound":    {objects: []runtime.Object{mine, saved}},
		"saved, claim gone":   {objects: []runtime.Object{saved}},
		"bound, and lost":     {objects: []runtime.Object{bound}},
		"not saved":           {objects: []runtime.Object{mine}, calls: 1},
		"not saved, and gone": {calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := csiMaker("h")
				m.begun, m.begunAs = []*v1.PersistentVolumeClaim{mine.DeepCopy()}, map[types.UID]string{"uid-1-1": "vol-1"}
				w := newWorld(t, setup{objects: append(c.objects, storageClass("class-1", ourName)), maker: m})
				w.rest(20)
				made, removed := m.calls()
				if made != c.calls || removed != 0 {
					t.Errorf("%d calls of Provision, want %d; %d volumes deleted", made, c.calls, removed)
				}
				if pvs := w.pvs(); pvs[savedName] != nil || (pvs["vol-1"] == nil) != (name == "bound, and lost") {
					t.Errorf("PersistentVolumes %v", pvs)
				}
				if got := m.settledOf(); !slices.Equal(got, []types.UID{"uid-1-1"}) || len(w.inProgress()) != 0 {
					t.Errorf("settled %v, in progress %v", got, w.inProgress())
				}
			})
		})
	}
}

// TestResumeOfAClaimThatIsNotOursAnyMore: it may have been begun all the same.
func TestResumeOfAClaimThatIsNotOursAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := claim("claim-1", "uid-1-1", "class-1", ourName)
		now := mine.DeepCopy()
		now.Annotations[annotationBetaStorageProvisioner] = otherName
		w := newWorld(t, setup{objects: []runtime.Object{storageClass("class-1", ourName), now}, maker: &maker{begun: []*v1.PersistentVolumeClaim{mine}}})
		w.rest(3)
		if made, _ := w.maker.calls(); made != 1 || len(w.pvs()) != 1 {
			t.Errorf("%d calls, %d saved", made, len(w.pvs()))
		}
	})
}

// TestFoundLater: records that show up after the start are taken up too, and do
// not set back what has come further.
func TestFoundLater(t *testing.T) {
	t.Run("of a claim that has gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{noResync: true})
			w.rest(1)
			w.maker.later(claim("claim-1", "uid-1-1", "class-1", ourName))
			w.rest(1)
			if v := w.pvs()[savedName]; v == nil || v.Spec.PersistentVolumeReclaimPolicy != del {
				t.Errorf("saved: %+v", v)
			}
			if len(w.maker.settledOf()) != 1 {
				t.Errorf("settled: %v", w.maker.settledOf())
			}
			w.api.release(savedName)
			w.rest(1)
			nothingRemembered(t, w)
		})
	})
	t.Run("of a claim whose volume is made and cannot be saved", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{objects: oneClaim(), noResync: true, before: failing("create", "persistentvolumes", 0)})
			w.rest(1)
			w.maker.later(claim("claim-1", "uid-1-1", "class-1", ourName))
			w.rest(1)
			if made, _ := w.maker.calls(); made != 1 {
				t.Errorf("%d volumes made, want the one that is known", made)
			}
		})
	})
	t.Run("of a claim that is saved", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{objects: oneClaim(), noResync: true})
			w.rest(1)
			w.maker.later(claim("claim-1", "uid-1-1", "class-1", ourName))
			w.rest(1)
			if made, _ := w.maker.calls(); made != 1 || len(w.maker.settledOf()) != 2 {
				t.Errorf("%d volumes made, settled %v", made, w.maker.settledOf())
			}
		})
	})
}

// unread is a provisioner whose records cannot be read at first.
type unread struct {
	*maker
	mu    sync.Mutex
	times int
}

func (u *unread) Begun(ctx context.Context, later func(*v1.PersistentVolumeClaim)) ([]*v1.PersistentVolumeClaim, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.times > 0 {
		u.times--
		return nil, errFake
	}
	return u.maker.Begun(ctx, later)
}

// TestRecordsCannotBeRead: nothing is provisioned until they can, and the end of
// the process is not kept waiting.
func TestRecordsCannotBeRead(t *testing.T) {
	for name, times := range map[string]int{"for a while": 3, "ever": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{objects: oneClaim(), wrap: func(m *maker) Provisioner { return &unread{maker: m, times: times} }})
				w.rest(2) // it is tried again each period
				if made, _ := w.maker.calls(); made != 0 {
					t.Error("provisioned without the records")
				}
				w.rest(10)
				if made, _ := w.maker.calls(); (made == 1) != (times == 3) {
					t.Errorf("%d volumes made", made)
				}
				w.ctrl.Drain()
				w.rest(1)
				select {
				case <-w.ended:
				default:
					t.Error("Run has not ended")
				}
			})
		})
	}
}

// TestClaimGoesBeforeTheRecordsAreRead: what it was told is forgotten with it,
// though no event says that it has gone.
func TestClaimGoesBeforeTheRecordsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim(), wrap: func(m *maker) Provisioner { return &unread{maker: m, times: 3} }})
		w.rest(2)
		if events := w.told(); len(events) != 1 {
			t.Errorf("events: %q, want one that says why it waits", events)
		}
		w.api.dropClaim("claim-1")
		w.rest(10)
		nothingRemembered(t, w)
	})
}

// TestReleasedWaitsForTheRecords: a volume that is not deleted because the records
// cannot be read says so.
func TestReleasedWaitsForTheRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{
			objects: []runtime.Object{pv("released", v1.VolumeReleased, del, ourName), pv("bound", v1.VolumeBound, del, ourName)},
			wrap:    func(m *maker) Provisioner { return &unread{maker: m, times: 3} },
		})
		w.rest(2)
		if events := w.told(); len(events) != 1 || !strings.Contains(events[0], ReasonVolumeFailedDelete) || !strings.Contains(events[0], "nothing is provisioned or deleted before that") {
			t.Errorf("events: %q, want one that says why it waits", events)
		}
		w.rest(10)
		if _, removed := w.maker.calls(); removed != 1 {
			t.Errorf("%d volumes deleted", removed)
		}
		nothingRemembered(t, w)
	})
}

// lastWords is a provisioner that is drained while its records are read, and whose
// informers have ended by the time that it answers.
type lastWords struct {
	*maker
	drain chan func()
}

func (l *lastWords) Begun(context.Context, func(*v1.PersistentVolumeClaim)) ([]*v1.PersistentVolumeClaim, error) {
	(<-l.drain)()
	time.Sleep(time.Minute)
	return nil, nil
}

// TestDrainedWhileRecordsAreRead: that is no fault, and nothing begins.
func TestDrainedWhileRecordsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drain := make(chan func(), 1)
		w := newWorld(t, setup{objects: oneClaim(), wrap: func(m *maker) Provisioner { return &lastWords{maker: m, drain: drain} }})
		drain <- w.ctrl.Drain
		<-w.ended
		if made, _ := w.maker.calls(); w.err != nil || made != 0 {
			t.Errorf("%d volumes made, error %v", made, w.err)
		}
	})
}
