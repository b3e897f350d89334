package csiprovisioner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

const (
	gceDriver, gcePlugin = "pd.csi.storage.gke.io", "kubernetes.io/gce-pd"
	ebsDriver, ebsPlugin = "ebs.csi.aws.com", "kubernetes.io/aws-ebs"
)

func of(name string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) { c.Provisioner = name }
}

func driverNamed(name string) func(*Config) { return func(c *Config) { c.DriverName = name } }

// TestClassOfAnInTreePlugin: the driver gets what it understands, and the
// PersistentVolume is the plugin's.
func TestClassOfAnInTreePlugin(t *testing.T) {
	for name, c := range map[string]struct {
		driver, plugin, handle, key, zone string
		class                             map[string]string
		parameters                        map[string]string
		check                             func(*v1.PersistentVolume) bool
	}{
		"gce": {gceDriver, gcePlugin, "projects/p/zones/us-a/disks/d", "topology.gke.io/zone", "us-east1-a", map[string]string{"type": "pd-ssd", "fsType": "xfs"}, map[string]string{"type": "pd-ssd"},
			func(pv *v1.PersistentVolume) bool {
				return pv.Spec.GCEPersistentDisk != nil && pv.Spec.GCEPersistentDisk.PDName == "d" && pv.Spec.GCEPersistentDisk.FSType == "xfs"
			}},
		"ebs": {ebsDriver, ebsPlugin, "vol-1", "topology.ebs.csi.aws.com/zone", "us-east-1a", map[string]string{"fstype": "xfs", "iopsPerGB": "3"}, map[string]string{"iopsPerGB": "3", "allowautoiopspergbincrease": "true"},
			func(pv *v1.PersistentVolume) bool {
				return pv.Spec.AWSElasticBlockStore != nil && pv.Spec.AWSElasticBlockStore.VolumeID == "vol-1" && pv.Spec.AWSElasticBlockStore.FSType == "xfs"
			}},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", name, restart), func(t *testing.T) {
				w := newWorld(t, driverNamed(c.driver))
				w.caps.Topology, w.topology.answer, w.sources.answer = true, zones("us-a"), copyOf("snap")
				if got := w.p.AdditionalNames(); !slices.Equal(got, []string{c.plugin}) {
					t.Fatalf("it answers also to %v", got)
				}
				w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
					return &csi.CreateVolumeResponse{Volume: &csi.Volume{
						VolumeId: c.handle, ContentSource: copyOf("snap").Content, AccessibleTopology: []*csi.Topology{{Segments: map[string]string{c.key: c.zone}}},
					}}, nil
				}
				sc := class(c.class, of(c.plugin), func(sc *storagev1.StorageClass) { sc.Parameters["zone"] = c.zone })
				pv := w.made(options(claim(), sc))
				if restart {
					w.restart()
					again := w.made(options(claim(), nil))
					if diff := cmp.Diff(pv, again); diff != "" {
						t.Errorf("the next process makes another PersistentVolume (-first +next):\n%s", diff)
					}
				}
				if pv.Spec.CSI != nil || !c.check(pv) {
					t.Errorf("PersistentVolume %+v", pv.Spec)
				}
				if by := pv.Annotations[provisioner.AnnotationProvisionedBy]; by != c.plugin {
					t.Errorf("it is provisioned by %q", by)
				}
				if _, ok := pv.Annotations[annotationDeletionSecretName]; !ok {
					t.Error("the annotation of the secret is missing")
				}
				if pv.Spec.NodeAffinity == nil || !strings.Contains(pv.Spec.NodeAffinity.String(), "topology.kubernetes.io/zone") {
					t.Errorf("the affinity is %v", pv.Spec.NodeAffinity)
				}
				req := w.driver.created[0]
				if diff := cmp.Diff(c.parameters, req.Parameters); diff != "" {
					t.Errorf("parameters (-want +got):\n%s", diff)
				}
				if fs := req.VolumeCapabilities[0].GetMount().GetFsType(); fs != "xfs" {
					t.Errorf("the filesystem is %q", fs)
				}
				if got := w.topology.asked[0]; got != "data, 1 terms, node " {
					t.Errorf("the topology was asked for %s", got)
				}
				// The next process knows it too.
				calls := []bool{true}
				if restart {
					calls = []bool{true, true}
				}
				w.driver.wantMigrated(t, calls...)
				// The snapshot is the driver's, whatever the class says.
				if got := w.sources.asked[0]; got != c.driver {
					t.Errorf("the source was looked for at %s", got)
				}
				if sc.Parameters["zone"] == "" || sc.Provisioner != c.plugin {
					t.Errorf("the class was changed: %+v", sc)
				}
			})
		}
	}
}

func TestClassOfTheDriverThatTookAPluginsPlace(t *testing.T) {
	w := newWorld(t, driverNamed(gceDriver))
	pv := w.made(options(claim(), class(nil, of(gceDriver))))
	if pv.Spec.CSI == nil || pv.Annotations[provisioner.AnnotationProvisionedBy] != gceDriver {
		t.Errorf("PersistentVolume %+v", pv)
	}
	if err := w.p.DeleteExt(t.Context(), pv); err != nil {
		t.Error(err)
	}
	w.driver.wantMigrated(t, false, false)
}

func TestClassThatCannotBeTranslated(t *testing.T) {
	w := newWorld(t, driverNamed(gceDriver))
	sc := class(map[string]string{"zone": "a"}, of(gcePlugin), func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "x", Values: []string{"y"}}}}}
	})
	wantRefused(t, w.fails(options(claim(), sc), provisioner.ProvisioningFinished, "correct it in a new class"), `StorageClass "fast" of kubernetes.io/gce-pd cannot be translated`)
	w.wantCalls(0, 0)
}

// TestVolumeThatCannotBeTranslatedBack can never be saved, and is deleted again.
func TestVolumeThatCannotBeTranslatedBack(t *testing.T) {
	for name, made := range map[string]*csi.Volume{
		"handle":   {VolumeId: "no path"},
		"topology": {VolumeId: "projects/p/zones/z/disks/d", AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"topology.gke.io/zone": "nowhere"}}}, VolumeContext: map[string]string{"token": canary}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, driverNamed(gceDriver))
			w.caps.Topology = true
			w.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
				return &csi.CreateVolumeResponse{Volume: made}, nil
			}
			err := w.fails(options(claim(), class(nil, of(gcePlugin))), provisioner.ProvisioningFinished, "volume "+made.VolumeId+" is deleted again")
			if len(err.Error()) > 400 {
				t.Errorf("nobody reads this: %v", err)
			}
			w.wantCalls(1, 1)
			w.driver.wantMigrated(t, true, true)
			w.wantJournal()
		})
	}
}

// TestInTreeVolumesAreDeletedByTheDriver, by what was provisioned and by what has
// moved.
func TestInTreeVolumesAreDeletedByTheDriver(t *testing.T) {
	for name, c := range map[string]struct {
		driver string
		source v1.PersistentVolumeSource
		want   string
	}{
		"ebs": {ebsDriver, v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-a/vol-0123456789abcdef0"}}, "vol-0123456789abcdef0"},
		"gce": {gceDriver, v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d"}}, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"},
	} {
		w := newWorld(t, driverNamed(c.driver), secretOf("sys", "s", canary))
		if err := w.classes.Add(class(named("s", "sys"), of(w.p.AdditionalNames()[0]))); err != nil {
			t.Fatal(err)
		}
		pv := volume1(func(pv *v1.PersistentVolume) { pv.Spec.PersistentVolumeSource = c.source })
		if err := w.p.DeleteExt(t.Context(), pv); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := w.driver.deleted[0]; got.VolumeId != c.want || got.Secrets["password"] != canary {
			t.Errorf("%s: the request is %v", name, got)
		}
		w.driver.wantMigrated(t, true)
		if pv.Spec.CSI != nil {
			t.Errorf("%s: the PersistentVolume was changed", name)
		}
		// A stray is recognized as in use through the in-tree form too.
		if err := w.pvs.Add(pv); err != nil {
			t.Fatal(err)
		}
		if other, err := w.p.standsFor(t.Context(), c.want); err != nil || other != "pv-1" {
			t.Errorf("%s: the volume is %q's, %v", name, other, err)
		}
	}
}

func TestAnotherPluginsVolumeIsNotDeleted(t *testing.T) {
	w := newWorld(t, driverNamed(ebsDriver))
	pv := volume1(func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "d"}}
	})
	if err := w.p.DeleteExt(t.Context(), pv); err == nil || !strings.Contains(err.Error(), "is of driver pd.csi.storage.gke.io, not ebs.csi.aws.com") {
		t.Errorf("error %v", err)
	}
	w.wantCalls(0, 0)
}
