package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/capacity"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// CapacityOptions configure the CSIStorageCapacity objects. Names and defaults are
// external-provisioner's.
type CapacityOptions struct {
	Enabled          bool
	Threads          int
	PollInterval     time.Duration
	ImmediateBinding bool
	OwnerLevel       int
	// QPS and Burst limit the requests about the objects; zero both: no limit of
	// their own.
	QPS   float32
	Burst int
}

// What external-provisioner takes for the one of the two limits that is not given.
const (
	defaultCapacityQPS   = 1
	defaultCapacityBurst = 5
)

func defaultCapacityOptions() CapacityOptions {
	return CapacityOptions{Threads: capacity.DefaultThreads, PollInterval: capacity.DefaultPollInterval, OwnerLevel: 1}
}

func (o *Options) addCapacityFlags(fs *pflag.FlagSet) {
	c := &o.Capacity
	fs.BoolVar(&c.Enabled, "enable-capacity", c.Enabled, "tell the scheduler where the driver has how much room, by CSIStorageCapacity objects in the Pod's namespace; the CSIDriver needs storageCapacity: true")
	fs.IntVar(&c.Threads, "capacity-threads", c.Threads, "places and classes whose room is asked for at once")
	fs.DurationVar(&c.PollInterval, "capacity-poll-interval", c.PollInterval, "time between two looks at the room of one place and class, give or take a fifth")
	fs.BoolVar(&c.ImmediateBinding, "capacity-for-immediate-binding", c.ImmediateBinding, "also for classes whose volumes wait for no node, which the scheduler does not look at")
	fs.IntVar(&c.OwnerLevel, "capacity-ownerref-level", c.OwnerLevel, "with whom the objects go: 0 is the Pod, 1 what controls it, 2 what controls that, such as a Deployment; -1: nobody")
	fs.Float32Var(&c.QPS, "kube-api-capacity-qps", c.QPS, fmt.Sprintf("requests per second to the API server about CSIStorageCapacity objects, beside --kube-api-qps; 0: %d with --kube-api-capacity-burst, else as all requests", defaultCapacityQPS))
	fs.IntVar(&c.Burst, "kube-api-capacity-burst", c.Burst, fmt.Sprintf("burst of --kube-api-capacity-qps; 0: %d", defaultCapacityBurst))
}

// limit is that of requests about the objects; zero both: none of their own.
func (c *CapacityOptions) limit() (qps float32, burst int) {
	return whole(c.QPS, c.Burst, defaultCapacityQPS, defaultCapacityBurst)
}

func (o *Options) validateCapacity() []error {
	var errs []error
	if c := o.Capacity; c.Threads < 1 || c.PollInterval <= 0 {
		errs = append(errs, fmt.Errorf("--capacity-threads=%d and --capacity-poll-interval=%v: must be positive", c.Threads, c.PollInterval))
	}
	if c := o.Capacity; c.QPS < 0 || c.Burst < 0 {
		errs = append(errs, fmt.Errorf("--kube-api-capacity-qps=%v and --kube-api-capacity-burst=%d: must not be negative; leave both out for no limit of their own", c.QPS, c.Burst))
	}
	if o.Capacity.OwnerLevel < -1 {
		errs = append(errs, fmt.Errorf("--capacity-ownerref-level=%d: use 0, 1, 2 and so on, or -1 for no owner", o.Capacity.OwnerLevel))
	}
	return errs
}

// newCapacity makes the controller of CSIStorageCapacity objects; nil where it is
// not wanted, or the driver cannot tell.
func newCapacity(ctx context.Context, d deps, places capacity.Segments, managedBy string) (*capacity.Controller, error) {
	o := d.opts
	switch {
	case !o.Capacity.Enabled:
		return nil, nil
	case !d.driver.Capabilities().Has(csi.ControllerServiceCapability_RPC_GET_CAPACITY):
		klog.FromContext(ctx).Error(nil, "--enable-capacity has no effect: the driver does not have GET_CAPACITY")
		return nil, nil
	}
	d.namespace = capacityNamespace(d.namespace)
	owner, err := capacityOwner(ctx, d)
	if err != nil {
		return nil, err
	}
	cfg := capacity.Config{
		DriverName: d.driver.Name(), ManagedBy: managedBy, Namespace: d.namespace, Owner: owner,
		Driver: d.driver, Segments: places, Client: d.clients.Capacity, Classes: d.shared.Storage().V1().StorageClasses(),
		ImmediateBinding: o.Capacity.ImmediateBinding, Threads: o.Capacity.Threads, PollInterval: o.Capacity.PollInterval,
		Timeout:            o.provisionerTimeout(),
		RetryIntervalStart: pick(o.Provisioner.RetryIntervalStart, o.RetryIntervalStart), RetryIntervalMax: pick(o.Provisioner.RetryIntervalMax, o.RetryIntervalMax),
		IsLeader: d.leader.IsLeader, Registry: d.registry,
	}
	teller, err := capacity.NewTeller(cfg, d.recorder)
	if err != nil {
		return nil, err
	}
	cfg.Report = teller.Report
	return capacity.New(cfg)
}

// capacityNamespace is where the objects are: beside the Pod, which owns them, even
// where the leases are in another namespace. NAMESPACE is how external-provisioner
// is told. Outside a Pod they are beside the leases.
func capacityNamespace(leases string) string {
	return cmp.Or(os.Getenv("NAMESPACE"), ownNamespace(), leases)
}

// capacityOwner finds with whom the objects are to go.
func capacityOwner(ctx context.Context, d deps) (*metav1.OwnerReference, error) {
	level := d.opts.Capacity.OwnerLevel
	if level < 0 {
		return nil, nil
	}
	pod := os.Getenv("POD_NAME")
	if pod == "" {
		return nil, &UsageError{fmt.Errorf("--capacity-ownerref-level=%d needs the environment variable POD_NAME: set it from metadata.name, or use -1", level)}
	}
	owner, err := capacity.FindOwner(ctx, d.clients.Work, d.namespace, pod, level)
	if err != nil {
		return nil, fmt.Errorf("finding the owner of CSIStorageCapacity objects: %w", err)
	}
	return owner, nil
}

// placesOf are where the driver can have volumes: what its nodes say, or one place
// where it knows no topology.
func placesOf(d deps, builder *topology.Builder) (capacity.Segments, error) {
	if !hasTopology(d.driver.Capabilities(), d.opts) {
		return topology.Fixed{topology.SegmentOf(nil)}, nil
	}
	return topology.NewSource(builder, d.shared.Core().V1().Nodes().Informer(), d.shared.Storage().V1().CSINodes().Informer())
}

func hasTopology(caps csiclient.Capabilities, o *Options) bool {
	return caps.HasService(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS) && o.Upstream.gate("Topology")
}

// refreshed tells of the room that volumes come to and go from.
func refreshed(c *capacity.Controller) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		if c != nil {
			c.Refresh(pv.Spec.StorageClassName, pv.Spec.NodeAffinity)
		}
	}
}
