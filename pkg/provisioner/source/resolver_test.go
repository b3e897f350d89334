package source

import (
	"context"
	"errors"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// scene is what a claim is resolved in; cases change what differs.
type scene struct {
	claim     *v1.PersistentVolumeClaim
	snap      *snapshotv1.VolumeSnapshot
	content   *snapshotv1.VolumeSnapshotContent
	src       *v1.PersistentVolumeClaim
	pv        *v1.PersistentVolume
	cfg       Config
	driver    string
	noSnapAPI bool
	fault     func(method, resource string) error
}

// verdict of Resolve: what it found, or the kind of its error.
const (
	nothing    = "nothing"
	refused    = "refused"
	notYet     = "not yet"
	populators = "foreign"
)

type resolveCase struct {
	name   string
	change func(s *scene)
	// want is a verdict, or a handle.
	want string
	// says must be in the error.
	says string
}

func newScene(claim *v1.PersistentVolumeClaim) *scene {
	yes := func() bool { return true }
	return &scene{
		claim: claim, snap: snapshot(), content: content(), src: sourceClaim(), pv: sourceVolume(),
		cfg: Config{CanSnapshot: yes, CanClone: yes}, driver: testDriver,
	}
}

func (s *scene) resolve(t *testing.T) (*Source, *fakeAPI, error) {
	t.Helper()
	api := newFakeAPI()
	if s.snap != nil {
		api.add(s.snap)
	}
	if s.content != nil {
		api.add(s.content)
	}
	if s.src != nil {
		api.add(s.src)
	}
	if s.pv != nil {
		api.add(s.pv)
	}
	api.snapshots, api.fault = !s.noSnapAPI, s.fault
	s.cfg.Dynamic = api.dynamic()
	r, err := New(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	before := s.claim.DeepCopy()
	got, err := r.Resolve(context.Background(), s.claim, s.driver)
	if !equality.Semantic.DeepEqual(before, s.claim) {
		t.Error("Resolve changed the claim")
	}
	if n := api.count("PUT volumesnapshots") + api.count("PUT persistentvolumeclaims"); n > 0 {
		t.Errorf("Resolve wrote %d times", n)
	}
	return got, api, err
}

func runCases(t *testing.T, claim func(string) *v1.PersistentVolumeClaim, cases []resolveCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(claim("new"))
			if c.change != nil {
				c.change(s)
			}
			got, _, err := s.resolve(t)
			if v := verdictOf(got, err); v != c.want {
				t.Errorf("got %s (%v), want %s", v, err, c.want)
			}
			if err != nil && (c.says == "" || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("the error %q should say %q", err, c.says)
			}
		})
	}
}

func verdictOf(got *Source, err error) string {
	var f *Foreign
	var r *Refused
	switch {
	case errors.As(err, &f):
		return populators
	case errors.As(err, &r):
		return refused
	case err != nil:
		return notYet
	case got == nil:
		return nothing
	case got.Content.GetSnapshot() != nil:
		return got.Content.GetSnapshot().SnapshotId
	default:
		return got.Content.GetVolume().GetVolumeId()
	}
}

func forbid(what string) func(string, string) error {
	return func(method, resource string) error {
		if method+" "+resource == what {
			return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "x", errors.New("no RBAC policy matched"))
		}
		return nil
	}
}

func unavailable(what string) func(string, string) error {
	return func(method, resource string) error {
		if method+" "+resource == what {
			return apierrors.NewServiceUnavailable("etcd is away")
		}
		return nil
	}
}

func TestResolveWithoutCSISource(t *testing.T) {
	runCases(t, pending, []resolveCase{
		{name: "no data source", want: nothing},
		{name: "no data source, and a driver that can copy nothing", want: nothing, change: func(s *scene) {
			s.cfg.CanClone, s.cfg.CanSnapshot = no, no
		}},
		{name: "a kind of a populator", want: populators, says: "populator", change: func(s *scene) {
			s.claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: ptr("example.com"), Kind: "Book", Name: "b"}
		}},
		{name: "a kind of a populator in dataSource too", want: populators, says: "example.com", change: func(s *scene) {
			s.claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: ptr("example.com"), Kind: "Book", Name: "b"}
			s.claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: ptr("example.com"), Kind: "Book", Name: "b"}
		}},
		{name: "a populator's source in another namespace", want: populators, says: "elsewhere/b", change: func(s *scene) {
			s.claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: ptr("example.com"), Kind: "Book", Name: "b", Namespace: ptr("elsewhere")}
		}},
		{name: "a VolumeSnapshot of another API group", want: populators, says: "snapshots.example.com", change: func(s *scene) {
			of(s.claim, Snapshot, "snap").Spec.DataSource.APIGroup = ptr("snapshots.example.com")
		}},
		{name: "a VolumeSnapshot without API group", want: populators, says: "populator", change: func(s *scene) {
			of(s.claim, Snapshot, "snap").Spec.DataSource.APIGroup = nil
		}},
		{name: "another kind of the snapshots' API group", want: populators, says: "VolumeGroupSnapshot", change: func(s *scene) {
			of(s.claim, Snapshot, "snap").Spec.DataSource.Kind = "VolumeGroupSnapshot"
		}},
		{name: "a PersistentVolumeClaim of another API group", want: populators, says: "example.com", change: func(s *scene) {
			of(s.claim, Claim, "src").Spec.DataSource.APIGroup = ptr("example.com")
		}},
		{name: "a populator is nobody's fault, whatever the driver can", want: populators, says: "populator", change: func(s *scene) {
			s.cfg.CanClone, s.cfg.CanSnapshot = no, no
			s.claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: ptr("example.com"), Kind: "Book", Name: "b"}
		}},
	})
}

func no() bool { return false }

func TestResolveSnapshot(t *testing.T) {
	block := ptr(v1.PersistentVolumeBlock)
	filesystem := ptr(v1.PersistentVolumeFilesystem)
	runCases(t, restore, []resolveCase{
		{name: "bound and ready", want: "sid"},
		{name: "only dataSourceRef", want: "sid", change: func(s *scene) { s.claim.Spec.DataSource = nil }},
		{name: "only dataSource", want: "sid", change: func(s *scene) { s.claim.Spec.DataSourceRef = nil }},
		{name: "dataSource goes before dataSourceRef", want: "sid", change: func(s *scene) { s.claim.Spec.DataSourceRef.Name = "other" }},
		{name: "dataSourceRef with the claim's own namespace", want: "sid", change: func(s *scene) {
			s.claim.Spec.DataSource, s.claim.Spec.DataSourceRef.Namespace = nil, ptr("ns")
		}},
		{name: "dataSourceRef with an empty namespace", want: "sid", change: func(s *scene) {
			s.claim.Spec.DataSource, s.claim.Spec.DataSourceRef.Namespace = nil, ptr("")
		}},
		{name: "dataSourceRef with another namespace", want: refused, says: "make the claim in namespace elsewhere", change: func(s *scene) {
			s.claim.Spec.DataSource, s.claim.Spec.DataSourceRef.Namespace = nil, ptr("elsewhere")
		}},
		{name: "driver without CREATE_DELETE_SNAPSHOT", want: refused, says: "CREATE_DELETE_SNAPSHOT", change: func(s *scene) { s.cfg.CanSnapshot = no }},
		{name: "driver without CLONE_VOLUME", want: "sid", change: func(s *scene) { s.cfg.CanClone = no }},
		{name: "no snapshot", want: notYet, says: "VolumeSnapshot ns/snap does not exist", change: func(s *scene) { s.snap = nil }},
		{name: "a snapshot of the name in another namespace", want: notYet, says: "does not exist", change: func(s *scene) { s.snap.Namespace = "elsewhere" }},
		{name: "no content", want: notYet, says: "VolumeSnapshotContent content does not exist", change: func(s *scene) { s.content = nil }},
		{name: "API of snapshots not served (T26)", want: notYet, says: "install the CRDs", change: func(s *scene) { s.noSnapAPI = true }},
		{name: "snapshots may not be read (T26)", want: notYet, says: "grant the sidecar's ServiceAccount get on volumesnapshots.snapshot.storage.k8s.io", change: func(s *scene) {
			s.fault = forbid("GET volumesnapshots")
		}},
		{name: "contents may not be read (T26)", want: notYet, says: "get on volumesnapshotcontents", change: func(s *scene) { s.fault = forbid("GET volumesnapshotcontents") }},
		{name: "API server away while reading the snapshot", want: notYet, says: "reading VolumeSnapshot ns/snap: etcd is away", change: func(s *scene) {
			s.fault = unavailable("GET volumesnapshots")
		}},
		{name: "API server away while reading the content", want: notYet, says: "etcd is away", change: func(s *scene) { s.fault = unavailable("GET volumesnapshotcontents") }},
		{name: "no status", want: notYet, says: "not bound", change: func(s *scene) { s.snap.Status = nil }},
		{name: "not bound", want: notYet, says: "not bound", change: func(s *scene) { s.snap.Status.BoundVolumeSnapshotContentName = nil }},
		{name: "bound to nothing", want: notYet, says: "not bound", change: func(s *scene) { s.snap.Status.BoundVolumeSnapshotContentName = ptr("") }},
		{name: "bound to another content", want: notYet, says: "VolumeSnapshotContent other does not exist", change: func(s *scene) {
			s.snap.Status.BoundVolumeSnapshotContentName = ptr("other")
		}},
		{name: "not ready", want: notYet, says: "not ready", change: func(s *scene) { s.snap.Status.ReadyToUse = ptr(false) }},
		{name: "readiness not known", want: notYet, says: "not ready", change: func(s *scene) { s.snap.Status.ReadyToUse = nil }},
		{name: "content without status", want: notYet, says: "no status.snapshotHandle", change: func(s *scene) { s.content.Status = nil }},
		{name: "content without handle", want: notYet, says: "no status.snapshotHandle", change: func(s *scene) { s.content.Status.SnapshotHandle = nil }},
		{name: "content with an empty handle", want: notYet, says: "no status.snapshotHandle", change: func(s *scene) { s.content.Status.SnapshotHandle = ptr("") }},
		{name: "content of another driver", want: refused, says: "StorageClass of csi.other.example.com", change: func(s *scene) { s.content.Spec.Driver = otherDriver }},
		{name: "class of another driver", want: refused, says: "StorageClass of csi.example.com", change: func(s *scene) { s.driver = otherDriver }},
		{name: "content of another driver, not ready either: the worse is told", want: refused, says: otherDriver, change: func(s *scene) {
			s.content.Spec.Driver, s.snap.Status.ReadyToUse = otherDriver, nil
		}},
		{name: "content bound to an older snapshot of the name", want: refused, says: "UID older", change: func(s *scene) { s.content.Spec.VolumeSnapshotRef.UID = "older" }},
		{name: "content bound to another snapshot", want: refused, says: "VolumeSnapshot ns/other", change: func(s *scene) { s.content.Spec.VolumeSnapshotRef.Name = "other" }},
		{name: "content bound to a snapshot elsewhere", want: refused, says: "VolumeSnapshot elsewhere/snap", change: func(s *scene) {
			s.content.Spec.VolumeSnapshotRef.Namespace = "elsewhere"
		}},
		{name: "content not bound back yet", want: notYet, says: "not bound to VolumeSnapshot", change: func(s *scene) { s.content.Spec.VolumeSnapshotRef.UID = "" }},
		{name: "content meant for another, not bound back yet", want: refused, says: "ns/other", change: func(s *scene) {
			s.content.Spec.VolumeSnapshotRef.UID, s.content.Spec.VolumeSnapshotRef.Name = "", "other"
		}},
		{name: "no restoreSize", want: "sid", change: func(s *scene) { s.snap.Status.RestoreSize = nil }},
		{name: "restoreSize of zero", want: "sid", change: func(s *scene) { s.snap.Status.RestoreSize = ptr(resource.MustParse("0")) }},
		{name: "just enough", want: "sid", change: func(s *scene) { s.claim.Spec.Resources = storage("1Gi") }},
		{name: "a byte too little", want: refused, says: "at least 1Gi", change: func(s *scene) { s.claim.Spec.Resources = storage("1073741823") }},
		{name: "a fraction of a byte is rounded up, as it is for the driver", want: "sid", change: func(s *scene) { s.claim.Spec.Resources = storage("1073741823500m") }},
		{name: "nothing requested", want: refused, says: "the claim requests 0", change: func(s *scene) { s.claim.Spec.Resources = v1.VolumeResourceRequirements{} }},
		{name: "content of unknown mode for a block volume", want: "sid", change: func(s *scene) { s.claim.Spec.VolumeMode = block }},
		{name: "block to block", want: "sid", change: func(s *scene) { s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, block }},
		{name: "filesystem to none given", want: "sid", change: func(s *scene) { s.content.Spec.SourceVolumeMode = filesystem }},
		{name: "filesystem to block", want: refused, says: "volumeMode is Block", change: func(s *scene) {
			s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, filesystem
		}},
		{name: "block to none given", want: refused, says: "with volumeMode Block", change: func(s *scene) { s.content.Spec.SourceVolumeMode = block }},
		{name: "filesystem to block, allowed by the content", want: "sid", change: func(s *scene) {
			s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, filesystem
			s.content.Annotations = map[string]string{AnnotationAllowModeChange: "true"}
		}},
		{name: "filesystem to block, allowed by the content with another word for true", want: "sid", change: func(s *scene) {
			s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, filesystem
			s.content.Annotations = map[string]string{AnnotationAllowModeChange: "T"}
		}},
		{name: "filesystem to block, denied by the content", want: refused, says: `which is "false"`, change: func(s *scene) {
			s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, filesystem
			s.content.Annotations = map[string]string{AnnotationAllowModeChange: "false"}
		}},
		{name: "filesystem to block, an annotation that is no truth value", want: refused, says: `which is "yes"`, change: func(s *scene) {
			s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, filesystem
			s.content.Annotations = map[string]string{AnnotationAllowModeChange: "yes"}
		}},
		{name: "the annotation on the snapshot, which its owner could set, does not count", want: refused, says: "VolumeSnapshotContent content", change: func(s *scene) {
			s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, filesystem
			s.snap.Annotations = map[string]string{AnnotationAllowModeChange: "true"}
		}},
		{name: "filesystem to block, not prevented", want: "sid", change: func(s *scene) {
			s.claim.Spec.VolumeMode, s.content.Spec.SourceVolumeMode = block, filesystem
			s.cfg.AllowVolumeModeConversion = true
		}},
		{name: "being deleted", want: refused, says: "being deleted", change: func(s *scene) { terminating(&s.snap.ObjectMeta, "other") }},
		{name: "being deleted, protected by us", want: "sid", change: func(s *scene) { terminating(&s.snap.ObjectMeta, "other", SnapshotFinalizer) }},
		{name: "being deleted, protected by the snapshotter only", want: refused, says: "being deleted", change: func(s *scene) {
			terminating(&s.snap.ObjectMeta, "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection")
		}},
	})
}

func TestResolveClone(t *testing.T) {
	block := ptr(v1.PersistentVolumeBlock)
	filesystem := ptr(v1.PersistentVolumeFilesystem)
	runCases(t, clone, []resolveCase{
		{name: "bound", want: "vid"},
		{name: "only dataSourceRef", want: "vid", change: func(s *scene) { s.claim.Spec.DataSource = nil }},
		{name: "only dataSource", want: "vid", change: func(s *scene) { s.claim.Spec.DataSourceRef = nil }},
		{name: "API group given as empty", want: "vid", change: func(s *scene) { s.claim.Spec.DataSource.APIGroup = ptr("") }},
		{name: "dataSource goes before dataSourceRef", want: "vid", change: func(s *scene) {
			s.claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: ptr("example.com"), Kind: "Book", Name: "b"}
		}},
		{name: "dataSourceRef with another namespace", want: refused, says: "another namespace", change: func(s *scene) {
			s.claim.Spec.DataSource, s.claim.Spec.DataSourceRef.Namespace = nil, ptr("elsewhere")
		}},
		{name: "driver without CLONE_VOLUME", want: refused, says: "CLONE_VOLUME", change: func(s *scene) { s.cfg.CanClone = no }},
		{name: "driver without CREATE_DELETE_SNAPSHOT", want: "vid", change: func(s *scene) { s.cfg.CanSnapshot = no }},
		{name: "API of snapshots not served (T26)", want: "vid", change: func(s *scene) { s.noSnapAPI = true }},
		{name: "itself", want: refused, says: "itself", change: func(s *scene) { s.claim.Name = "src" }},
		{name: "no source", want: notYet, says: "PersistentVolumeClaim ns/src does not exist", change: func(s *scene) { s.src = nil }},
		{name: "a claim of the name in another namespace", want: notYet, says: "does not exist", change: func(s *scene) { s.src.Namespace = "elsewhere" }},
		{name: "no volume", want: notYet, says: "PersistentVolume pv does not exist", change: func(s *scene) { s.pv = nil }},
		{name: "claims may not be read", want: notYet, says: "grant", change: func(s *scene) { s.fault = forbid("GET persistentvolumeclaims") }},
		{name: "volumes may not be read", want: notYet, says: "grant", change: func(s *scene) { s.fault = forbid("GET persistentvolumes") }},
		{name: "API server away while reading the claim", want: notYet, says: "etcd is away", change: func(s *scene) { s.fault = unavailable("GET persistentvolumeclaims") }},
		{name: "API server away while reading the volume", want: notYet, says: "etcd is away", change: func(s *scene) { s.fault = unavailable("GET persistentvolumes") }},
		{name: "pending", want: notYet, says: "not bound", change: func(s *scene) { s.src.Status.Phase, s.src.Spec.VolumeName = v1.ClaimPending, "" }},
		{name: "pending with a volume name", want: notYet, says: "not bound", change: func(s *scene) { s.src.Status.Phase = v1.ClaimPending }},
		{name: "without a phase", want: notYet, says: "not bound", change: func(s *scene) { s.src.Status.Phase = "" }},
		{name: "bound to nothing", want: notYet, says: "not bound", change: func(s *scene) { s.src.Spec.VolumeName = "" }},
		{name: "lost", want: refused, says: "lost", change: func(s *scene) { s.src.Status.Phase = v1.ClaimLost }},
		{name: "being deleted", want: refused, says: "being deleted", change: func(s *scene) { terminating(&s.src.ObjectMeta) }},
		{name: "being deleted, though protected by us", want: refused, says: "delete this claim", change: func(s *scene) { terminating(&s.src.ObjectMeta, CloneFinalizer) }},
		{name: "other classes", want: "vid", change: func(s *scene) { s.claim.Spec.StorageClassName, s.src.Spec.StorageClassName = ptr("a"), ptr("b") }},
		{name: "empty class of the source", want: "vid", change: func(s *scene) { s.src.Spec.StorageClassName = ptr("") }},
		{name: "no class", want: refused, says: "the claim has no spec.storageClassName", change: func(s *scene) { s.claim.Spec.StorageClassName = nil }},
		{name: "no class of the source", want: refused, says: "ns/src has no spec.storageClassName", change: func(s *scene) { s.src.Spec.StorageClassName = nil }},
		{name: "same size", want: "vid", change: func(s *scene) { s.claim.Spec.Resources = storage("1Gi") }},
		{name: "a byte too little", want: refused, says: "at least 1Gi", change: func(s *scene) { s.claim.Spec.Resources = storage("1073741823") }},
		{name: "nothing requested", want: refused, says: "at least 1Gi", change: func(s *scene) { s.claim.Spec.Resources = v1.VolumeResourceRequirements{} }},
		{name: "source of unknown size", want: "vid", change: func(s *scene) { s.src.Spec.Resources = v1.VolumeResourceRequirements{} }},
		{name: "block to block", want: "vid", change: func(s *scene) { s.claim.Spec.VolumeMode, s.src.Spec.VolumeMode = block, block }},
		{name: "filesystem to none given", want: "vid", change: func(s *scene) { s.src.Spec.VolumeMode = filesystem }},
		{name: "none given to filesystem", want: "vid", change: func(s *scene) { s.claim.Spec.VolumeMode = filesystem }},
		{name: "filesystem to block", want: refused, says: "volumeMode is Block", change: func(s *scene) { s.claim.Spec.VolumeMode, s.src.Spec.VolumeMode = block, filesystem }},
		{name: "none given to block", want: refused, says: "volumeMode is Block", change: func(s *scene) { s.claim.Spec.VolumeMode = block }},
		{name: "block to none given", want: refused, says: "with volumeMode Block", change: func(s *scene) { s.src.Spec.VolumeMode = block }},
		{name: "volume of another driver", want: refused, says: "CSI driver csi.other.example.com", change: func(s *scene) { s.pv.Spec.CSI.Driver = otherDriver }},
		{name: "class of another driver", want: refused, says: "StorageClass of csi.other.example.com", change: func(s *scene) { s.driver = otherDriver }},
		{name: "volume of no CSI driver", want: refused, says: "no CSI driver", change: func(s *scene) {
			s.pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}}
		}},
		{name: "volume bound to nobody", want: refused, says: "not bound to", change: func(s *scene) { s.pv.Spec.ClaimRef = nil }},
		{name: "volume bound to an older claim of the name", want: refused, says: "not bound to", change: func(s *scene) { s.pv.Spec.ClaimRef.UID = "older" }},
		{name: "volume bound to a claim elsewhere", want: refused, says: "not bound to", change: func(s *scene) { s.pv.Spec.ClaimRef.Namespace = "elsewhere" }},
		{name: "volume bound to another claim", want: refused, says: "not bound to", change: func(s *scene) { s.pv.Spec.ClaimRef.Name = "other" }},
		{name: "volume available", want: notYet, says: "is Available and not Bound", change: func(s *scene) { s.pv.Status.Phase = v1.VolumeAvailable }},
		{name: "volume released", want: notYet, says: "is Released and not Bound yet; see the events of both", change: func(s *scene) { s.pv.Status.Phase = v1.VolumeReleased }},
		{name: "volume without a handle", want: notYet, says: "no volumeHandle", change: func(s *scene) { s.pv.Spec.CSI.VolumeHandle = "" }},
	})
}

// What Protect and a journal need of a source.
func TestResolveTellsWhichObject(t *testing.T) {
	for _, c := range []struct {
		claim *v1.PersistentVolumeClaim
		want  Ref
	}{{restore("new"), snapRef}, {clone("new"), srcRef}} {
		got, _, err := newScene(c.claim).resolve(t)
		if err != nil || got.Ref != c.want {
			t.Errorf("got %+v, %v, want %+v", got, err, c.want)
		}
	}
}

// A snapshot API, or a permission, that comes later is used without a restart.
func TestResolveOnceSnapshotsCanBeRead(t *testing.T) {
	api := newFakeAPI(snapshot(), content())
	api.snapshots = false
	yes := func() bool { return true }
	r, err := New(Config{Dynamic: api.dynamic(), CanSnapshot: yes, CanClone: yes})
	if err != nil {
		t.Fatal(err)
	}
	try := func() string { return verdictOf(r.Resolve(context.Background(), restore("new"), testDriver)) }
	if got := try(); got != notYet {
		t.Errorf("without the API: %s", got)
	}
	api.set(func() { api.snapshots, api.fault = true, forbid("GET volumesnapshots") })
	if got := try(); got != notYet {
		t.Errorf("without permission: %s", got)
	}
	api.set(func() { api.fault = nil })
	if got := try(); got != "sid" {
		t.Errorf("with both: %s", got)
	}
}

func TestConfigOfResolver(t *testing.T) {
	good := Config{Dynamic: newFakeAPI().dynamic(), CanSnapshot: no, CanClone: no}
	for name, change := range map[string]func(*Config){
		"":            func(*Config) {},
		"Dynamic":     func(c *Config) { c.Dynamic = nil },
		"CanSnapshot": func(c *Config) { c.CanSnapshot = nil },
		"CanClone":    func(c *Config) { c.CanClone = nil },
		"Timeout":     func(c *Config) { c.Timeout = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg); (err != nil) != (name != "") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%q: got %v", name, err)
		}
	}
}
