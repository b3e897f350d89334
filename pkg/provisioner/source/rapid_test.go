package source

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// act is one thing that happens; the script of a run is drawn before it starts, so
// that the run itself is plain code in a bubble.
type act struct {
	what   string
	user   string
	source Ref
	nth    int
}

var (
	users   = []string{"a", "b", "c"}
	sources = []Ref{snapRef, srcRef}

	genAct = rapid.Custom(func(t *rapid.T) act {
		return act{
			what: rapid.SampledFrom([]string{
				"create", "create", "bind", "remove", "begin", "begin", "begin", "end", "end", "end", "pass", "pass",
				"remove source", "make source", "foreign", "fault", "heal", "restart", "wait",
			}).Draw(t, "what"),
			user:   rapid.SampledFrom(users).Draw(t, "user"),
			source: rapid.SampledFrom(sources).Draw(t, "source"),
			nth:    rapid.IntRange(0, 5).Draw(t, "nth"),
		}
	})
)

// attempt is one try to have a volume made, from a Protect that succeeded to the
// Release.
type attempt struct {
	user string
	ref  Ref
	// token is the user by which it protects: of two at once each ends by itself.
	token types.UID
	// journalled: it outlives the process.
	journalled bool
}

// machine runs a script and keeps the model: who needs which source.
type machine struct {
	*rig

	// modelMu guards what follows; it is taken within the fake API's.
	modelMu  sync.Mutex
	attempts []attempt
	process  int
	begun    int
	wrong    []string
	made     int
	// created is when a claim was last made, by its user. The controller need not
	// have heard of one that was made less than unheard ago.
	created map[string]time.Time
}

const unheard = time.Second

func (m *machine) complain(format string, args ...any) {
	m.modelMu.Lock()
	defer m.modelMu.Unlock()
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

// written judges an update of ours: it may change our finalizer alone, and take it
// off only if nobody in the model needs the source.
func (m *machine) written(was, is *unstructured.Unstructured) {
	k := key{Kind(was.GetKind()), was.GetNamespace(), was.GetName()}
	others := func(u *unstructured.Unstructured) *unstructured.Unstructured {
		u = u.DeepCopy()
		rest := slices.DeleteFunc(u.GetFinalizers(), func(f string) bool { return f == k.finalizer() })
		u.SetFinalizers(nil) // none and an empty list are the same
		if len(rest) > 0 {
			u.SetFinalizers(rest)
		}
		return u
	}
	if x, y := others(was), others(is); !equality.Semantic.DeepEqual(x.Object, y.Object) {
		m.complain("%s: more than our finalizer was changed, from %v to %v", k, x.Object, y.Object)
	}
	if slices.Contains(is.GetFinalizers(), k.finalizer()) {
		return
	}
	if k.kind == Claim && was.GetDeletionTimestamp() == nil {
		m.complain("%s was freed though it is not being deleted", k)
	}
	m.modelMu.Lock()
	defer m.modelMu.Unlock()
	for _, user := range users {
		claim := m.api.objects[claimID(user)] // the API is locked
		if claim != nil && time.Since(m.created[user]) > unheard && claimNeeds(claim, k) {
			m.wrong = append(m.wrong, fmt.Sprintf("%s was freed though claim %s waits", k, user))
		}
	}
	for _, at := range m.attempts {
		if at.ref == k.ref(was.GetUID()) {
			m.wrong = append(m.wrong, fmt.Sprintf("%s was freed though a volume is made of it: %+v", k, at))
		}
	}
}

// claimNeeds is written apart from what it is to check.
func claimNeeds(claim *unstructured.Unstructured, k key) bool {
	bound, _, _ := unstructured.NestedString(claim.Object, "spec", "volumeName")
	kind, _, _ := unstructured.NestedString(claim.Object, "spec", "dataSourceRef", "kind")
	name, _, _ := unstructured.NestedString(claim.Object, "spec", "dataSourceRef", "name")
	return bound == "" && kind == string(k.kind) && name == k.name
}

func (m *machine) inJournal(ref Ref) bool {
	m.modelMu.Lock()
	defer m.modelMu.Unlock()
	return slices.ContainsFunc(m.attempts, func(at attempt) bool { return at.journalled && at.ref == ref })
}

// sourceID is where a source is, and live the one that is there now.
func sourceID(ref Ref) id {
	if ref.Kind == Snapshot {
		return snapID
	}
	return srcID
}

func (m *machine) live(ref Ref) Ref {
	if u := m.api.get(sourceID(ref)); u != nil {
		ref.UID = u.GetUID()
	}
	return ref
}

func (m *machine) do(a act) {
	switch a.what {
	case "create":
		claim := of(pending(a.user), a.source.Kind, a.source.Name)
		if a.nth%2 == 0 {
			claim.Spec.DataSource = nil
		}
		if m.api.get(claimID(a.user)) == nil {
			m.modelMu.Lock()
			m.created[a.user] = time.Now()
			m.modelMu.Unlock()
			m.api.add(claim)
		}
	case "bind":
		m.bind(a.user)
	case "remove":
		m.api.remove(claimID(a.user))
	case "begin":
		m.begin(a.user, a)
	case "end":
		m.end(a.user)
	case "pass":
		// One begins as another ends, without a pause between.
		m.begin(users[(slices.Index(users, a.user)+1)%len(users)], a)
		m.end(a.user)
	case "remove source":
		m.api.remove(sourceID(a.source))
	case "make source":
		m.made++
		m.makeSource(a.source, types.UID(fmt.Sprintf("made-%d", m.made)))
	case "foreign":
		m.api.change(sourceID(a.source), func(u *unstructured.Unstructured) { m.foreign(u, a.nth) })
	case "fault":
		m.api.set(func() { m.api.fault, m.api.lose = faults(a.nth), losses(a.nth) })
	case "heal":
		m.api.set(func() { m.api.fault, m.api.lose = nil, nil })
	case "restart":
		m.crash()
	case "wait":
		m.settle([]time.Duration{0, time.Millisecond, time.Second, time.Minute, 6 * time.Minute, time.Hour}[a.nth])
	}
}

// foreign adds or removes somebody else's finalizer.
func (m *machine) foreign(u *unstructured.Unstructured, nth int) {
	finalizers, name := u.GetFinalizers(), fmt.Sprintf("other-%d", nth%2)
	switch {
	case slices.Contains(finalizers, name):
		finalizers = slices.DeleteFunc(finalizers, func(f string) bool { return f == name })
	case u.GetDeletionTimestamp() == nil:
		finalizers = append(finalizers, name)
	}
	u.SetFinalizers(finalizers)
}

func faults(nth int) func(method, resource string) error {
	n := 0
	return func(method, resource string) error {
		n++
		switch gr := (schema.GroupResource{Resource: resource}); {
		case method == "LIST" || n%2 == 0:
			return nil
		case nth == 0:
			return apierrors.NewInternalError(errors.New("broken"))
		case nth == 1 && method == "PUT":
			return apierrors.NewConflict(gr, "x", errors.New("modified"))
		case nth == 2 && method == "PUT" && resource == "persistentvolumeclaims":
			return apierrors.NewForbidden(gr, "x", errors.New("denied"))
		case nth == 3 && method == "GET":
			return apierrors.NewTimeoutError("slow", 1)
		}
		return nil
	}
}

func losses(nth int) func(method, resource string) error {
	if nth < 4 {
		return nil
	}
	return func(method, _ string) error {
		if method == "PUT" {
			return apierrors.NewInternalError(errors.New("the answer is lost"))
		}
		return nil
	}
}

// begin is what a provisioner does before CreateVolume. It has its own time: what
// follows in the script comes in between.
func (m *machine) begin(user string, a act) {
	ref := m.live(a.source)
	m.modelMu.Lock()
	m.begun++
	at := attempt{user, ref, types.UID(fmt.Sprintf("%s-%d", user, m.begun)), a.nth > 2}
	process := m.process
	m.modelMu.Unlock()
	p, ctx := m.p, m.ctx
	go func() {
		if p.Protect(ctx, at.ref, at.token) != nil {
			return
		}
		m.modelMu.Lock()
		defer m.modelMu.Unlock()
		if process == m.process {
			m.attempts = append(m.attempts, at)
		}
	}()
}

// end is what it does after CreateVolume.
func (m *machine) end(user string) {
	m.modelMu.Lock()
	i := slices.IndexFunc(m.attempts, func(at attempt) bool { return at.user == user })
	if i < 0 {
		m.modelMu.Unlock()
		return
	}
	at := m.attempts[i]
	m.attempts = slices.Delete(m.attempts, i, i+1)
	m.modelMu.Unlock()
	m.p.Release(at.ref, at.token)
}

// crash ends the process, and with it what is not in the journal.
func (m *machine) crash() {
	m.modelMu.Lock()
	m.process++
	m.attempts = slices.DeleteFunc(m.attempts, func(at attempt) bool { return !at.journalled })
	m.modelMu.Unlock()
	m.restart()
}

func (m *machine) makeSource(ref Ref, uid types.UID) {
	if ref.Kind == Snapshot {
		snap, con := snapshot(), content()
		snap.UID, con.Spec.VolumeSnapshotRef.UID = uid, uid
		m.api.add(snap)
		return
	}
	src := sourceClaim()
	src.UID = uid
	m.api.add(src)
}

// check asks, of what is at rest, for what the attempts were promised.
func (m *machine) check() {
	m.modelMu.Lock()
	attempts := slices.Clone(m.attempts)
	m.modelMu.Unlock()
	for _, at := range attempts {
		u := m.api.get(sourceID(at.ref))
		if u == nil || u.GetUID() != at.ref.UID || !slices.Contains(u.GetFinalizers(), at.ref.key().finalizer()) {
			m.complain("%s is not protected, for %+v", at.ref, at)
		}
	}
}

// finish ends all, after which no finalizer of ours may be left.
func (m *machine) finish() {
	m.api.set(func() { m.api.fault, m.api.lose = nil, nil })
	m.settle(time.Hour)
	m.check()
	for _, user := range users {
		m.api.remove(claimID(user))
		for range m.begun {
			m.end(user)
		}
	}
	m.settle(time.Hour)
	if m.has(snapID, SnapshotFinalizer) {
		m.complain("the snapshot is left with our finalizer")
	}
	if u := m.api.get(srcID); u != nil && u.GetDeletionTimestamp() != nil && m.has(srcID, CloneFinalizer) {
		m.complain("the claim is left with our finalizer")
	}
}

// Our finalizer is there for as long as a volume is made, whatever comes in
// between; it comes off only when nobody needs the source, and then it does; and
// nothing else of an object is ever changed.
func TestProtectionHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(genAct, 1, 60).Draw(rt, "script")
		seed := rapid.Int64().Draw(rt, "seed")
		m := &machine{rig: newRig(content(), sourceVolume(), snapshot(), sourceClaim()), created: map[string]time.Time{}}
		m.config = func(cfg *ProtectionConfig) { cfg.InUse, cfg.Threads = m.inJournal, 2 }
		m.api.written = m.written
		random, randomMu := rand.New(rand.NewSource(seed)), sync.Mutex{}
		m.api.pause = func() {
			randomMu.Lock()
			d := time.Duration(random.Intn(20)) * time.Millisecond
			randomMu.Unlock()
			time.Sleep(d)
		}
		m.run(t, func(*testing.T) {
			for _, a := range script {
				m.do(a)
				m.settle(time.Duration(a.nth*a.nth) * time.Millisecond)
				m.check()
			}
			m.finish()
		})
		if len(m.wrong) > 0 {
			rt.Fatalf("%s\nscript: %+v\nlog:\n%s", m.wrong, script, m.log())
		}
	})
}
