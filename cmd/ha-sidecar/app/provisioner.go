package app

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/internal/leader"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/capacity"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/csiprovisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// provisioning is the provisioner with what runs beside it.
type provisioning struct {
	controller *provisioner.ProvisionController
	journal    *journal.Journal
	// begun tells which volumes were begun.
	begun *csiprovisioner.Provisioner
	// beside run for as long as the controller does.
	beside []func(context.Context) error
}

// run ends when the controller has, or when one of the others cannot go on. The
// journal is the last to stop: what has ended is still written down.
func (p *provisioning) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	lasting, stop := context.WithCancel(ctx)
	group.Go(func() error { return p.journal.Run(lasting) })
	for _, run := range p.beside {
		group.Go(func() error { return run(lasting) })
	}
	group.Go(func() error {
		defer stop()
		return p.controller.RunContext(ctx)
	})
	return group.Wait()
}

// newProvisioner makes the provisioner and its parts.
func newProvisioner(ctx context.Context, d deps, c *controllers) (*provisioning, error) {
	o := &d.opts.Provisioner
	retryStart, retryMax := pick(o.RetryIntervalStart, d.opts.RetryIntervalStart), pick(o.RetryIntervalMax, d.opts.RetryIntervalMax)
	csiProvisioner, err := newCSIProvisioner(ctx, d)
	if err != nil {
		return nil, err
	}
	parts := &provisioning{journal: csiProvisioner.journal, begun: csiProvisioner.Provisioner, beside: csiProvisioner.beside}
	options := []provisioner.Option{
		provisioner.WithInformerFactory(d.shared),
		provisioner.WithEventRecorder(d.recorder),
		provisioner.WithRegistry(d.registry),
		provisioner.WithWorkers(d.opts.provisionerWorkers()),
		provisioner.WithTimeout(d.opts.provisionerTimeout()),
		provisioner.WithRetryInterval(retryStart, retryMax),
		provisioner.WithoutRetryLimit(),
		provisioner.WithAdditionalNames(csiProvisioner.AdditionalNames()...),
		provisioner.WithSynced(csiProvisioner.synced),
		provisioner.WithOnChange(refreshed(csiProvisioner.capacity)),
		provisioner.WithVolumeName(volumeNamer(o.VolumeNamePrefix, o.VolumeNameUUIDLength)),
	}
	if attachable(d.driver.Capabilities()) {
		var holds func(volume.Handle) bool
		if c.attacher != nil {
			holds = c.attacher.Holds
		}
		options = append(options, provisioner.WithVolumeAttachments(holds))
	}
	parts.controller = provisioner.NewProvisionController(d.clients.Work, 0, d.driver.Name(), csiProvisioner.Provisioner, "", true, 0, options...)
	return parts, nil
}

// csiParts is the CSI provisioner with the parts that run beside it.
type csiParts struct {
	*csiprovisioner.Provisioner
	journal  *journal.Journal
	capacity *capacity.Controller
	beside   []func(context.Context) error
	// synced reports whether it is known where volumes can be.
	synced cache.InformerSynced
}

func newCSIProvisioner(ctx context.Context, d deps) (*csiParts, error) {
	o := &d.opts.Provisioner
	timeout := d.opts.provisionerTimeout()
	parts := &csiParts{}
	local, err := newLocality(d, parts)
	if err != nil {
		return nil, err
	}
	parts.synced = local.segments.HasSynced
	if parts.journal, err = journal.New(journal.Config{
		Client: d.clients.Work, Namespace: d.namespace, Name: local.journal, Timeout: timeout,
		Found: func(ctx context.Context, records map[string]string) { parts.Found(ctx, records) },
	}); err != nil {
		return nil, err
	}
	can := func(t csi.ControllerServiceCapability_RPC_Type) func() bool {
		return func() bool { return d.driver.Capabilities().Has(t) }
	}
	sources, err := source.New(source.Config{
		Dynamic: d.clients.Dynamic, Timeout: timeout, AllowVolumeModeConversion: !o.PreventVolumeModeConversion,
		CanSnapshot: can(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT), CanClone: can(csi.ControllerServiceCapability_RPC_CLONE_VOLUME),
	})
	if err != nil {
		return nil, err
	}
	protection, err := source.NewProtection(source.ProtectionConfig{
		DriverName: d.driver.Name(), Dynamic: d.clients.Dynamic, Timeout: timeout,
		Claims: d.shared.Core().V1().PersistentVolumeClaims(), Volumes: d.shared.Core().V1().PersistentVolumes(),
		InUse: func(ref source.Ref) bool { return parts.Needs(ref) }, Elsewhere: local.elsewhere, Near: local.owns,
		IsLeader: d.leader.IsLeader, Threads: o.CloningProtectionThreads, SweepInterval: o.SnapshotOrphanSweepInterval,
		RetryIntervalStart: pick(o.RetryIntervalStart, d.opts.RetryIntervalStart), RetryIntervalMax: pick(o.RetryIntervalMax, d.opts.RetryIntervalMax),
	})
	if err != nil {
		return nil, err
	}
	parts.beside = append(parts.beside, protection.Run)
	if parts.capacity, err = newCapacity(ctx, d, local.segments, local.managedBy); err != nil {
		return nil, err
	}
	if parts.capacity != nil {
		parts.beside = append(parts.beside, parts.capacity.Run)
	}
	parts.Provisioner, err = csiprovisioner.New(csiprovisioner.Config{
		DriverName: d.driver.Name(), Driver: guarded{d.driver, d.leader}, Client: d.clients.Work, Recorder: d.recorder,
		Capabilities: func() csiprovisioner.Capabilities { return d.opts.provisionCapabilities(d.driver.Capabilities()) },
		Classes:      d.shared.Storage().V1().StorageClasses().Lister(), Volumes: d.shared.Core().V1().PersistentVolumes().Lister(),
		Journal: parts.journal, Topology: local.requirements, Sources: sources, Protection: protection,
		Registry: d.registry, Timeout: timeout, DefaultFSType: pick(o.DefaultFSType, d.opts.Attacher.DefaultFSType),
		ExtraCreateMetadata: o.ExtraCreateMetadata, PublishReadOnly: o.ControllerPublishReadOnly,
		Identity: identity(d), Share: local.share, Owns: local.owns, Mine: local.mine,
	})
	return parts, err
}

// identity is written into each volume; the form is external-provisioner's.
func identity(d deps) string {
	return fmt.Sprintf("%d-%d-%s", d.started.UnixMilli(), rand.IntN(10000), d.driver.Name())
}

// journalName is what the ConfigMaps of the journal are called, but for a number.
func journalName(driver string) string {
	return leader.SanitizeName("ha-sidecar-journal-" + strings.ToLower(driver))
}

// volumeNamer names PersistentVolumes, and their volumes, after their claims.
// length < 0: the whole UID.
func volumeNamer(prefix string, length int) func(*v1.PersistentVolumeClaim) string {
	return func(claim *v1.PersistentVolumeClaim) string {
		uid := string(claim.UID)
		if length < 0 {
			return prefix + "-" + uid
		}
		uid = strings.ReplaceAll(uid, "-", "")
		return prefix + "-" + uid[:min(length, len(uid))]
	}
}

// provisionCapabilities picks what shapes a create request.
func (o *Options) provisionCapabilities(caps csiclient.Capabilities) csiprovisioner.Capabilities {
	return csiprovisioner.Capabilities{
		CreateDelete:          caps.Has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME),
		Topology:              hasTopology(caps, o),
		Modify:                caps.Has(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME) && o.Upstream.gate("VolumeAttributesClass"),
		SingleNodeMultiWriter: caps.Has(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
	}
}

// gate is a feature gate of external-provisioner that is on unless it was
// switched off.
func (u UpstreamOptions) gate(name string) bool {
	on, err := strconv.ParseBool(u.FeatureGates[name])
	return err != nil || on
}

// defaultProvisionerThreads is external-provisioner's default.
const defaultProvisionerThreads = 100

// provisionerWorkers is how many claims, and volumes, are worked on at once.
func (o *Options) provisionerWorkers() int {
	common := defaultProvisionerThreads
	if o.given("worker-threads") {
		common = o.WorkerThreads
	}
	return pick(o.Provisioner.WorkerThreads, common)
}

// provisionerTimeout bounds a call of the provisioner.
func (o *Options) provisionerTimeout() time.Duration {
	return pick(o.Provisioner.Timeout, o.Timeout)
}
