package csiprovisioner

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// TestVolumeThatIsElsewhere: what a node's driver made where the node is not is
// deleted by the same driver at once, since nobody else ever would; what is here, or
// everywhere, stays.
func TestVolumeThatIsElsewhere(t *testing.T) {
	here, err := topology.NewHere(map[string]string{"node": "n1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		at    map[string]string
		stays bool
	}{"here": {map[string]string{"node": "n1"}, true}, "elsewhere": {map[string]string{"node": "n2"}, false}, "everywhere": {nil, true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config) {
				cfg.Topology = here
				cfg.Mine = func(pv *v1.PersistentVolume) bool { return here.Has(pv.Spec.NodeAffinity) }
			})
			w.caps.Topology = true
			w.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
				reply := w.driver.make(req)
				reply.Volume.AccessibleTopology = []*csi.Topology{{Segments: c.at}}
				return reply, nil
			}
			o := onNode(options(claim(), class(nil)), "n1")
			if c.stays {
				w.made(o)
				w.wantCalls(1, 0)
				return
			}
			w.fails(o, provisioner.ProvisioningFinished, "where this node is not")
			w.wantCalls(1, 1)
			w.wantJournal()
			if left := w.driver.left(); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
		})
	}
}

// TestDeletionIsForTheNodeOfTheVolume, and asked about before anything is read.
func TestDeletionIsForTheNodeOfTheVolume(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.Mine = func(pv *v1.PersistentVolume) bool { return pv.Name == "mine" } })
	for name, want := range map[string]bool{"mine": true, "other": false} {
		pv := &v1.PersistentVolume{}
		pv.Name = name
		if got := w.p.ShouldDelete(t.Context(), pv); got != want {
			t.Errorf("ShouldDelete(%s) = %v", name, got)
		}
	}
}
