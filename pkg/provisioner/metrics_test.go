package provisioner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

// TestMetrics: names and labels are external-provisioner's; dashboards rely on
// them.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fromSnapshot := func(c *v1.PersistentVolumeClaim) {
			class := "class-1"
			c.Spec.StorageClassName = &class
			c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "s"}
		}
		m := &maker{
			provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
				switch o.PVC.Name {
				case "claim-3":
					return nil, ProvisioningInBackground, errFake
				case "claim-2":
					return nil, ProvisioningFinished, errFake
				}
				return nfsVolume(o), ProvisioningFinished, nil
			},
			remove: func(v *v1.PersistentVolume) error {
				if v.Name == "volume-2" {
					return errFake
				}
				return nil
			},
		}
		inClass := func(v *v1.PersistentVolume) { v.Spec.StorageClassName = "class-1" }
		registry := metrics.NewKubeRegistry()
		w := newWorld(t, setup{
			objects: []runtime.Object{
				storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName, fromSnapshot),
				claim("claim-2", "uid-1-2", "class-1", ourName), claim("claim-3", "uid-1-3", "class-1", ourName),
				pv("volume-1", v1.VolumeReleased, del, ourName, inClass), pv("volume-2", v1.VolumeReleased, del, ourName, inClass),
			},
			maker: m, noResync: true, exponential: true, options: []Option{WithRegistry(registry), WithRetryInterval(time.Hour, time.Hour)},
		})
		w.rest(2)
		want := `
# HELP controller_persistentvolume_delete_failed_total [ALPHA] Attempts to delete a volume that failed.
# TYPE controller_persistentvolume_delete_failed_total counter
controller_persistentvolume_delete_failed_total{class="class-1"} 1
# HELP controller_persistentvolume_delete_total [ALPHA] Volumes deleted.
# TYPE controller_persistentvolume_delete_total counter
controller_persistentvolume_delete_total{class="class-1"} 1
# HELP controller_persistentvolumeclaim_provision_failed_total [ALPHA] Attempts to provision that failed.
# TYPE controller_persistentvolumeclaim_provision_failed_total counter
controller_persistentvolumeclaim_provision_failed_total{class="",source=""} 2
# HELP controller_persistentvolumeclaim_provision_total [ALPHA] Volumes provisioned.
# TYPE controller_persistentvolumeclaim_provision_total counter
controller_persistentvolumeclaim_provision_total{class="class-1",source="VolumeSnapshot"} 1
# HELP ha_sidecar_provisioner_background_volumes [ALPHA] Volumes that may exist, and whose creation is tried until that is known.
# TYPE ha_sidecar_provisioner_background_volumes gauge
ha_sidecar_provisioner_background_volumes 1
# HELP ha_sidecar_provisioner_panics_total [ALPHA] Panics caught while working on an item.
# TYPE ha_sidecar_provisioner_panics_total counter
ha_sidecar_provisioner_panics_total 0
# HELP ha_sidecar_provisioner_unsaved_volumes [ALPHA] Volumes that exist, and whose PersistentVolume could not be saved yet.
# TYPE ha_sidecar_provisioner_unsaved_volumes gauge
ha_sidecar_provisioner_unsaved_volumes 0
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
			"controller_persistentvolume_delete_failed_total", "controller_persistentvolume_delete_total",
			"controller_persistentvolumeclaim_provision_failed_total", "controller_persistentvolumeclaim_provision_total",
			"ha_sidecar_provisioner_background_volumes", "ha_sidecar_provisioner_panics_total", "ha_sidecar_provisioner_unsaved_volumes",
		); err != nil {
			t.Error(err)
		}
		for name, labels := range map[string]map[string]string{
			"controller_persistentvolumeclaim_provision_duration_seconds": {"class": "class-1", "source": "VolumeSnapshot"},
			"controller_persistentvolume_delete_duration_seconds":         {"class": "class-1"},
		} {
			h, err := testutil.GetHistogramVecFromGatherer(registry, name, labels)
			if err != nil || h.GetAggregatedSampleCount() != 1 {
				t.Errorf("%s: %d samples, %v", name, h.GetAggregatedSampleCount(), err)
			}
		}
	})
}

// TestIgnoredIsCountedAsFailed: upstream does.
func TestIgnoredIsCountedAsFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim(), maker: script(ignored), noResync: true, options: []Option{WithRegistry(metrics.NewKubeRegistry())}})
		w.rest(2)
		if n, err := testutil.GetCounterMetricValue(w.ctrl.metrics.provisionFailedTotal.WithLabelValues("", "")); err != nil || n != 1 {
			t.Errorf("%v failures counted, %v", n, err)
		}
	})
}
