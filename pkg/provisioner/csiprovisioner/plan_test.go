package csiprovisioner

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

func zone(name string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{"example.com/zone": name}}
}

func zones(names ...string) *csi.TopologyRequirement {
	r := &csi.TopologyRequirement{}
	for _, n := range names {
		r.Requisite, r.Preferred = append(r.Requisite, zone(n)), append(r.Preferred, zone(n))
	}
	return r
}

func attributesClassOf(driver string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: driver, Parameters: map[string]string{"iops": "9"}}
}

func gold(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr("gold") }

// TestWholeRequestAndVolume has every field of both for a claim that uses all that
// there is.
func TestWholeRequestAndVolume(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.ExtraCreateMetadata = true }, attributesClassOf(testDriver), secretOf("sys", "blue", canary))
	w.caps = Capabilities{CreateDelete: true, Topology: true, Modify: true}
	w.topology.answer, w.sources.answer = zones("a", "b"), copyOf("snap")
	w.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{
			VolumeId: "vol-7", CapacityBytes: 2<<30 + 1, ContentSource: req.VolumeContentSource, VolumeContext: map[string]string{"share": "x"},
			AccessibleTopology: []*csi.Topology{zone("a"), {}},
		}}, nil
	}
	sc := class(map[string]string{
		"type": "ssd", parameterFSType: "xfs", provisionerSecret.name: "${pvc.annotations['team/secret']}", provisionerSecret.namespace: "sys",
		nodeStageSecret.name: "stage", nodeStageSecret.namespace: "${pvc.namespace}",
	}, func(c *storagev1.StorageClass) {
		c.MountOptions, c.ReclaimPolicy = []string{"noatime", "ro"}, ptr(v1.PersistentVolumeReclaimRetain)
		c.AllowedTopologies = []v1.TopologySelectorTerm{{}, {}}
	})
	c := claim(gold, sized("2Gi"), modes(v1.ReadWriteOnce, v1.ReadOnlyMany), func(c *v1.PersistentVolumeClaim) {
		c.Annotations["team/secret"] = "blue"
		c.Spec.VolumeMode = ptr(v1.PersistentVolumeFilesystem)
	})
	pv := w.made(onNode(options(c, sc), "node-1"))

	mount := &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime", "ro"}}}
	wantRequest := &csi.CreateVolumeRequest{
		Name:          "pvc-uid-1",
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30},
		VolumeCapabilities: []*csi.VolumeCapability{
			{AccessType: mount, AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}},
			{AccessType: mount, AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY}},
		},
		Parameters:                map[string]string{"type": "ssd", parameterClaimName: "data", parameterClaimNamespace: "ns", parameterVolumeName: "pvc-uid-1"},
		Secrets:                   map[string]string{"password": canary},
		VolumeContentSource:       copyOf("snap").Content,
		AccessibilityRequirements: zones("a", "b"),
		MutableParameters:         map[string]string{"iops": "9"},
	}
	if diff := cmp.Diff(wantRequest, w.driver.created[0], protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	wantPV := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by":                            testDriver,
			"volume.kubernetes.io/provisioner-deletion-secret-name":      "blue",
			"volume.kubernetes.io/provisioner-deletion-secret-namespace": "sys",
		}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(2<<30+1, resource.BinarySI)},
			AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain, StorageClassName: "fast", MountOptions: []string{"noatime", "ro"},
			VolumeMode: ptr(v1.PersistentVolumeFilesystem), VolumeAttributesClassName: ptr("gold"),
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: testDriver, VolumeHandle: "vol-7", FSType: "xfs",
				VolumeAttributes:   map[string]string{"share": "x", "storage.kubernetes.io/csiProvisionerIdentity": "me"},
				NodeStageSecretRef: &v1.SecretReference{Name: "stage", Namespace: "ns"},
			}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: "example.com/zone", Operator: v1.NodeSelectorOpIn, Values: []string{"a"}}},
			}}}},
		},
	}
	if diff := cmp.Diff(wantPV, pv); diff != "" {
		t.Errorf("PersistentVolume (-want +got):\n%s", diff)
	}
	if got := strings.Join(w.topology.asked, "; "); got != "data, 2 terms, node node-1" {
		t.Errorf("the topology was asked for %s", got)
	}
}

// TestPlainVolume: what is not asked for is not there, but for the annotations of
// the secret.
func TestPlainVolume(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Identity = "" })
	w.topology.answer = zones("a")
	w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", AccessibleTopology: []*csi.Topology{zone("a")}}}, nil
	}
	pv := w.made(onNode(options(claim(), class(nil)), "node-1"))
	for _, key := range []string{annotationDeletionSecretName, annotationDeletionSecretNamespace} {
		if value, ok := pv.Annotations[key]; !ok || value != "" {
			t.Errorf("annotation %s is %q, %v; want it there and empty", key, value, ok)
		}
	}
	if _, ok := pv.Annotations[annotationModifySecretName]; ok {
		t.Error("there is a secret to modify with")
	}
	if _, ok := pv.Spec.CSI.VolumeAttributes[attributeIdentity]; !ok {
		t.Error("the identity is missing")
	}
	if pv.Spec.NodeAffinity != nil || pv.Spec.VolumeAttributesClassName != nil || pv.Spec.VolumeMode != nil || pv.Spec.CSI.ReadOnly || pv.Spec.CSI.NodeStageSecretRef != nil {
		t.Errorf("too much is said: %+v", pv.Spec)
	}
	// The driver did not say how large it is.
	if size := pv.Spec.Capacity[v1.ResourceStorage]; size.Value() != 1<<30 || size.String() != "1Gi" {
		t.Errorf("the capacity is %v", size.String())
	}
	req := w.driver.created[0]
	if req.Secrets != nil || req.AccessibilityRequirements != nil || req.MutableParameters != nil || req.VolumeContentSource != nil || req.CapacityRange.LimitBytes != 0 {
		t.Errorf("too much is asked: %v", req)
	}
}

func TestAccessModesAreOneCapabilityEach(t *testing.T) {
	const (
		single, multi        = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		singleSingle, writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		reader               = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	)
	all := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod}
	for name, c := range map[string]struct {
		capable bool
		want    []csi.VolumeCapability_AccessMode_Mode
	}{
		"with SINGLE_NODE_MULTI_WRITER": {true, []csi.VolumeCapability_AccessMode_Mode{multi, reader, writer, singleSingle}},
		"without":                       {false, []csi.VolumeCapability_AccessMode_Mode{single, reader, writer, single}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, isBlock := range []bool{false, true} {
				w := newWorld(t, func(c *Config) { c.DefaultFSType = "ext4" })
				w.caps.SingleNodeMultiWriter = c.capable
				changes := []func(*v1.PersistentVolumeClaim){modes(all...)}
				if isBlock {
					changes = append(changes, block)
				}
				pv := w.made(options(claim(changes...), class(nil, func(c *storagev1.StorageClass) { c.MountOptions = []string{"sync"} })))
				var got []csi.VolumeCapability_AccessMode_Mode
				for _, capability := range w.driver.created[0].VolumeCapabilities {
					got = append(got, capability.AccessMode.Mode)
					if mount := capability.GetMount(); (mount == nil) != isBlock || (capability.GetBlock() == nil) == isBlock || !isBlock && (mount.FsType != "ext4" || len(mount.MountFlags) != 1) {
						t.Errorf("block %v: the capability is %v", isBlock, capability)
					}
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if (pv.Spec.CSI.FSType == "") != isBlock || len(pv.Spec.AccessModes) != 4 || len(pv.Spec.MountOptions) != 1 {
					t.Errorf("block %v: PersistentVolume %+v", isBlock, pv.Spec)
				}
			}
		})
	}
}

func TestReadOnlyWhereItCanOnlyBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		on    bool
		modes []v1.PersistentVolumeAccessMode
		want  bool
	}{
		"only read":       {true, []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}, true},
		"switched off":    {false, []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}, false},
		"read or written": {true, []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce}, false},
		"written":         {true, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, false},
	} {
		w := newWorld(t, func(cfg *Config) { cfg.PublishReadOnly = c.on })
		if got := w.made(options(claim(modes(c.modes...)), class(nil))).Spec.CSI.ReadOnly; got != c.want {
			t.Errorf("%s: readOnly is %v", name, got)
		}
	}
}

func TestSizeThatIsAskedFor(t *testing.T) {
	for size, want := range map[string]int64{
		"1": 1, "1Gi": 1 << 30, "1G": 1e9, "1.5": 2, "100m": 1, "1500m": 2, "1023.1Mi": 1072798106, "8Ei": math.MaxInt64, "100Ei": math.MaxInt64,
	} {
		got, err := requested(claim(sized(size)))
		if err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", size, got, err, want)
		}
	}
	for _, size := range []string{"0", "-1", "-1Gi", "-100m"} {
		_, err := requested(claim(sized(size)))
		wantRefused(t, err, "claim ns/data asks for "+size)
	}
	_, err := requested(claim(func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil }))
	wantRefused(t, err, "asks for no size")
}

// TestRefusedBeforeTheDriver has what is wrong with a claim or its class, what is
// said, and that nothing is left.
func TestRefusedBeforeTheDriver(t *testing.T) {
	const finished, noChange, reschedule = provisioner.ProvisioningFinished, provisioner.ProvisioningNoChange, provisioner.ProvisioningReschedule
	gr := schema.GroupResource{Resource: "volumeattributesclasses"}
	for name, c := range map[string]struct {
		world  func(*world)
		claim  []func(*v1.PersistentVolumeClaim)
		class  map[string]string
		state  provisioner.ProvisioningState
		text   string
		latest bool // it is tried again late
	}{
		"no CREATE_DELETE_VOLUME": {world: func(w *world) { w.caps.CreateDelete = false }, state: finished, text: "does not have CREATE_DELETE_VOLUME", latest: true},
		"a selector": {claim: []func(*v1.PersistentVolumeClaim){func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }},
			state: finished, text: "claim Selector is not supported", latest: true},
		"a size of nothing":      {claim: []func(*v1.PersistentVolumeClaim){sized("0")}, state: finished, text: "asks for 0", latest: true},
		"no access mode":         {claim: []func(*v1.PersistentVolumeClaim){modes()}, state: finished, text: "claim ns/data has no access mode", latest: true},
		"an unknown access mode": {claim: []func(*v1.PersistentVolumeClaim){modes("ReadSometimes")}, state: finished, text: `access mode "ReadSometimes" is not known`, latest: true},
		"an unknown parameter":   {class: map[string]string{parameterPrefix + "x": ""}, state: finished, text: "is not known", latest: true},
		"two filesystems":        {class: map[string]string{parameterFSType: "", "fstype": ""}, state: finished, text: "both name a filesystem", latest: true},
		"half a secret":          {class: map[string]string{nodeExpandSecret.name: "x"}, state: finished, text: "the node expand secret needs both", latest: true},
		"no MODIFY_VOLUME":       {claim: []func(*v1.PersistentVolumeClaim){gold}, state: finished, text: "does not have MODIFY_VOLUME", latest: true},
		"an attributes class that is missing": {world: func(w *world) { w.caps.Modify = true }, claim: []func(*v1.PersistentVolumeClaim){gold},
			state: noChange, text: `VolumeAttributesClass "gold" of claim ns/data does not exist: create it`},
		"an attributes class of another driver": {world: func(w *world) {
			w.caps.Modify = true
			if err := w.client.Tracker().Add(attributesClassOf("other.example.com")); err != nil {
				w.t.Fatal(err)
			}
		}, claim: []func(*v1.PersistentVolumeClaim){gold}, state: finished, text: `is for driver "other.example.com"`, latest: true},
		"an attributes class that may not be read": {world: func(w *world) {
			w.caps.Modify = true
			w.client.PrependReactor("get", "volumeattributesclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(gr, "gold", errors.New("no"))
			})
		}, claim: []func(*v1.PersistentVolumeClaim){gold}, state: noChange, text: "allow get of volumeattributesclasses"},
		"a source that will not do":  {world: func(w *world) { w.sources.err = &source.Refused{What: "it is too small", Do: "ask for more"} }, state: finished, text: "it is too small; ask for more", latest: true},
		"a source that is not ready": {world: func(w *world) { w.sources.err = errors.New("it is not ready yet") }, state: noChange, text: "not ready yet"},
		"a node that is gone":        {world: func(w *world) { w.caps.Topology, w.topology.err = true, topology.ErrNodeGone }, state: reschedule, text: "the selected node is gone"},
		"a node without labels":      {world: func(w *world) { w.caps.Topology, w.topology.err = true, errors.New("node n lacks labels") }, state: noChange, text: "choosing where the volume is to be: node n lacks labels"},
		"a source that cannot be kept": {world: func(w *world) { w.sources.answer, w.protection.err = copyOf("snap"), errors.New("it is being deleted") },
			state: noChange, text: "it is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			if c.world != nil {
				c.world(w)
			}
			err := w.fails(onNode(options(claim(c.claim...), class(c.class)), "n"), c.state, c.text)
			var late provisioner.Infeasible
			if got := errors.As(err, &late) && late.Infeasible(); got != c.latest {
				t.Errorf("it is tried again late: %v", got)
			}
			w.wantCalls(0, 0)
			if len(w.journal.ever) > 0 {
				t.Error("something was written down")
			}
			if held, released := w.protection.counts(); held != released {
				t.Errorf("%d sources held and %d released", held, released)
			}
		})
	}
}

func TestClassThatIsGone(t *testing.T) {
	newWorld(t, nil).fails(options(claim(), nil), provisioner.ProvisioningNoChange, "the StorageClass of claim ns/data does not exist: create it")
}

// TestSourceThatCannotBeProtected: the volume is made, and its claim is told.
func TestSourceThatCannotBeProtected(t *testing.T) {
	w := newWorld(t, nil)
	w.sources.answer, w.protection.err = copyOf("snap"), &source.Unprotected{Err: errors.New("forbidden; grant update")}
	w.made(options(claim(), class(nil)))
	if event := <-w.events.Events; event != "Warning SourceUnprotected the data source may be deleted while the volume is made of it: forbidden; grant update" {
		t.Errorf("event %q", event)
	}
	if held, _ := w.protection.counts(); held != 1 {
		t.Errorf("the source was held %d times", held)
	}
}

func TestPopulatorsClaim(t *testing.T) {
	w := newWorld(t, nil)
	w.sources.err = &source.Foreign{Group: "pop.example.com", Kind: "Bucket", Namespace: "ns", Name: "b"}
	_, state, err := w.provision(options(claim(), class(nil)))
	var ignored *provisioner.IgnoredError
	if !errors.As(err, &ignored) || state != provisioner.ProvisioningFinished || !strings.Contains(ignored.Reason, "Bucket ns/b") {
		t.Errorf("state %s, %v", state, err)
	}
	if event := <-w.events.Events; event != "Normal Provisioning Assuming an external populator will provision the volume" {
		t.Errorf("the event is %q", event)
	}
	w.wantCalls(0, 0)
	w.wantJournal()
}

func TestConfigTellsAllThatIsMissing(t *testing.T) {
	_, err := New(Config{Timeout: -1})
	for _, what := range []string{"DriverName", "Driver ", "Capabilities", "Client", "Classes", "Journal", "Topology", "Sources", "Protection", "Recorder", "Volumes", "timeout"} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v does not tell of %s", err, what)
		}
	}
}

func TestClaimsOfTheInTreePluginWaitUntilTheyHaveMoved(t *testing.T) {
	const inTree, driver = "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"
	for name, c := range map[string]struct {
		annotations map[string]string
		qualified   bool
		want        bool
	}{
		"the driver's":                 {map[string]string{provisioner.AnnotationStorageProvisioner: driver}, true, true},
		"the driver's by the old name": {map[string]string{"volume.beta.kubernetes.io/storage-provisioner": driver}, true, true},
		"the plugin's":                 {map[string]string{provisioner.AnnotationStorageProvisioner: inTree}, true, false},
		"the plugin's, moved":          {map[string]string{provisioner.AnnotationStorageProvisioner: inTree, provisioner.AnnotationMigratedTo: driver}, true, true},
		"nobody's":                     {nil, true, false},
		"another node's":               {map[string]string{provisioner.AnnotationStorageProvisioner: driver}, false, false},
	} {
		w := newWorld(t, func(cfg *Config) { cfg.DriverName = driver })
		w.p.cfg.Share = func(context.Context, *v1.PersistentVolumeClaim) (bool, time.Duration, error) {
			return c.qualified, 0, nil
		}
		w.p.cfg.Owns = func(*v1.PersistentVolumeClaim) bool { return c.qualified }
		annotated := claim(func(pvc *v1.PersistentVolumeClaim) { pvc.Annotations = c.annotations })
		got, _, err := w.p.Share(t.Context(), annotated)
		if owned := w.p.Owns(annotated); got != c.want || owned != c.want || err != nil {
			t.Errorf("%s: %v, owned %v, %v", name, got, owned, err)
		}
	}
}
