package health

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Monitor watches the health of one driver's volumes. One goroutine, the event
// loop of Run, owns all that is believed; others read snapshots of it.
type Monitor struct {
	cfg     Config
	metrics *instruments
	look    listers
	synced  []cache.InformerSynced

	// Owned by the event loop.
	tracker     *tracker
	leases      *leases
	volumes     *volumes
	attachments *attachments
	pods        map[types.NamespacedName]types.UID
	podNames    map[types.UID]types.NamespacedName
	// unresolved are pods, and orphaned VolumeAttachments, that wait for an
	// object which is not in the cache yet.
	unresolved map[types.NamespacedName]struct{}
	orphaned   map[string]map[string]struct{}
	panicked   map[item]struct{}
	announcer  *announcer
	unheard    int
	heard      bool
	inFlight   sync.WaitGroup
	// podChecks wait, by node, for the next read of its pods.
	podChecks map[string]waitingChecks
	podReads  map[string]bool

	inbox   *inbox
	swept   chan sweepResult
	answers chan answered
	reading chan struct{} // one token for each live read under way
	writer  *claimWriter  // made by Run; nil for none

	changed chan struct{}
	current atomic.Pointer[snapshot] // nil until Run has read the caches
}

// listers read the shared caches; what they return is never changed.
type listers struct {
	pvs      corelisters.PersistentVolumeLister
	claims   corelisters.PersistentVolumeClaimLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	vas      storagelisters.VolumeAttachmentLister
	csiNodes storagelisters.CSINodeLister
	leases   coordinationlisters.LeaseLister
}

// maxReads bounds the live reads under way at one time.
const maxReads = 32

// New makes a Monitor. It registers the metrics and asks the informer factory
// for what it needs, so that the factory can be started before Run.
func New(cfg Config) (*Monitor, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	instruments, err := newInstruments(cfg.Registry)
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	m := &Monitor{
		cfg:     cfg,
		metrics: instruments,
		look: listers{
			pvs:      cfg.Informers.Core().V1().PersistentVolumes().Lister(),
			claims:   cfg.Informers.Core().V1().PersistentVolumeClaims().Lister(),
			pods:     cfg.Informers.Core().V1().Pods().Lister(),
			nodes:    cfg.Informers.Core().V1().Nodes().Lister(),
			vas:      cfg.Informers.Storage().V1().VolumeAttachments().Lister(),
			csiNodes: cfg.Informers.Storage().V1().CSINodes().Lister(),
			leases:   coordinationlisters.NewLeaseLister(cfg.LeaseInformer.GetIndexer()),
		},
		tracker: newTracker(rules{
			confirmations: cfg.Confirmations,
			confirmAfter:  cfg.ConfirmAfter,
			suspectFor:    cfg.SuspectFor,
			suspectMax:    cfg.SuspectMax,
		}),
		leases:      newLeases(cfg.LeaseGrace),
		volumes:     newVolumes(),
		attachments: newAttachments(),
		pods:        map[types.NamespacedName]types.UID{},
		podNames:    map[types.UID]types.NamespacedName{},
		unresolved:  map[types.NamespacedName]struct{}{},
		orphaned:    map[string]map[string]struct{}{},
		panicked:    map[item]struct{}{},
		announcer:   newAnnouncer(cfg.Recorder),
		inbox:       newInbox(),
		swept:       make(chan sweepResult),
		answers:     make(chan answered),
		podChecks:   map[string]waitingChecks{},
		podReads:    map[string]bool{},
		reading:     make(chan struct{}, maxReads),
		changed:     make(chan struct{}, 1),
	}
	for _, informer := range m.informers() {
		m.synced = append(m.synced, informer.HasSynced)
	}
	return m, nil
}

func (m *Monitor) informers() map[kind]cache.SharedIndexInformer {
	f := m.cfg.Informers
	return map[kind]cache.SharedIndexInformer{
		kindPV:      f.Core().V1().PersistentVolumes().Informer(),
		kindClaim:   f.Core().V1().PersistentVolumeClaims().Informer(),
		kindPod:     f.Core().V1().Pods().Informer(),
		kindNode:    f.Core().V1().Nodes().Informer(),
		kindVA:      f.Storage().V1().VolumeAttachments().Informer(),
		kindCSINode: f.Storage().V1().CSINodes().Informer(),
		kindLease:   m.cfg.LeaseInformer,
	}
}

// Run watches until ctx ends, and waits for what it started. It is called once,
// by the leader. It fails only if the informers do.
func (m *Monitor) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithName("health")
	ctx = klog.NewContext(ctx, logger)
	if !cache.WaitForCacheSync(ctx.Done(), m.synced...) {
		return nil // ctx ended first.
	}
	remove, delivered, err := m.listen()
	defer remove()
	if err != nil {
		return fmt.Errorf("watching objects: %w", err)
	}
	if !cache.WaitForCacheSync(ctx.Done(), delivered...) {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	if !m.cfg.DisableClaimStatus {
		m.writer = newClaimWriter(m.cfg.Client, m.look, m.metrics, m.cfg.Clock)
		group.Go(func() error { m.writer.run(ctx); return nil })
	}
	group.Go(func() error { m.loop(ctx); return nil })
	group.Go(func() error { m.sweepLoop(ctx); return nil })
	err = group.Wait()
	m.inFlight.Wait()
	return err
}

// Verdicts lists the adverse verdicts, in the order of handle and node. A
// node's verdict is left out while the volume is known to be lost or
// inaccessible from everywhere. The slice is the caller's to read only.
func (m *Monitor) Verdicts() []volume.Verdict {
	if s := m.current.Load(); s != nil {
		return s.verdicts
	}
	return nil
}

// Changed tells that the verdicts are others than when it was last received
// from.
func (m *Monitor) Changed() <-chan struct{} { return m.changed }

// Recovered reports whether nothing adverse is believed, confirmed or not, nor
// suspected of the volume as seen from the node. It is false until Run has read
// the caches.
func (m *Monitor) Recovered(handle volume.Handle, node string) bool {
	s := m.current.Load()
	if s == nil {
		return false
	}
	_, abnormal := s.abnormal[volume.Key{Handle: handle, Node: node}]
	return !abnormal
}

// Statuses lists all that is believed adverse, with what keeps a verdict from
// being confirmed, also where Verdicts leaves it out. It is for people: explain
// and debug pages.
func (m *Monitor) Statuses() []Status {
	if s := m.current.Load(); s != nil {
		return s.statuses
	}
	return nil
}
