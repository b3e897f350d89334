package app

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/capacity"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/csiprovisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// locality is what differs between a provisioner for the whole cluster and one for
// a node.
type locality struct {
	// journal is what the journal's ConfigMaps are called, but for a number.
	journal string
	// requirements tell the driver where a volume is to be.
	requirements csiprovisioner.Topology
	// segments are where room is told of, managedBy signs that.
	segments  capacity.Segments
	managedBy string
	// share and mine are nil where all claims and volumes are ours.
	share func(ctx context.Context, claim *v1.PersistentVolumeClaim) (mine bool, again time.Duration, err error)
	mine  func(pv *v1.PersistentVolume) bool
	// owns tells which claims are ours already, and elsewhere where another process
	// needs a data source; nil likewise.
	owns      func(claim *v1.PersistentVolumeClaim) bool
	elsewhere func(ctx context.Context, ref source.Ref) (where string, err error)
}

// newLocality chooses by --node-deployment. parts need not be complete yet.
func newLocality(d deps, parts *csiParts) (*locality, error) {
	if d.node == nil {
		return newCentral(d)
	}
	sharer, err := newSharer(d, parts)
	if err != nil {
		return nil, err
	}
	here := d.node.here
	return &locality{
		journal: nodeJournalName(d.driver.Name(), d.node.name), requirements: here,
		segments: topology.Fixed{here.Segment()}, managedBy: capacity.ManagedBy(d.node.name),
		share: sharer.Share, owns: sharer.Owns, elsewhere: otherJournals(d), mine: func(pv *v1.PersistentVolume) bool { return here.Has(pv.Spec.NodeAffinity) },
	}, nil
}

// otherJournals looks for a data source in the journals of all other nodes, and of
// the process for the whole cluster that there may have been before.
func otherJournals(d deps) func(context.Context, source.Ref) (string, error) {
	reader := journal.Reader{
		Client: d.clients.Work, Namespace: d.namespace, Timeout: d.opts.provisionerTimeout(),
		Name: journalName(d.driver.Name()), Except: nodeJournalName(d.driver.Name(), d.node.name),
	}
	return func(ctx context.Context, ref source.Ref) (where string, err error) {
		err = reader.Each(ctx, func(configMap, record string) bool {
			if csiprovisioner.RecordNeeds(record, ref) {
				where = "ConfigMap " + d.namespace + "/" + configMap
			}
			return where == ""
		})
		return where, err
	}
}

// newCentral is for the whole cluster, which it watches.
func newCentral(d deps) (*locality, error) {
	o := &d.opts.Provisioner
	places, err := topology.New(topology.Config{
		DriverName: d.driver.Name(), Strict: o.StrictTopology, Immediate: o.ImmediateTopology,
		Nodes: d.shared.Core().V1().Nodes().Lister(), CSINodes: d.shared.Storage().V1().CSINodes().Lister(),
	})
	if err != nil {
		return nil, err
	}
	segments, err := placesOf(d, places)
	if err != nil {
		return nil, err
	}
	return &locality{
		journal: journalName(d.driver.Name()), requirements: places, segments: segments, managedBy: capacity.ManagedByCentral,
	}, nil
}
