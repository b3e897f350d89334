package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/failover"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/nodeshare"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// envNodeName is the environment variable that names our node.
const envNodeName = "NODE_NAME"

// NodeDeploymentOptions configure a provisioner for one node. Names and defaults
// are external-provisioner's.
type NodeDeploymentOptions struct {
	Enabled          bool
	ImmediateBinding bool
	BaseDelay        time.Duration
	MaxDelay         time.Duration
}

func defaultNodeDeploymentOptions() NodeDeploymentOptions {
	return NodeDeploymentOptions{ImmediateBinding: true, BaseDelay: nodeshare.DefaultBaseDelay, MaxDelay: nodeshare.DefaultMaxDelay}
}

func (o *Options) addNodeDeploymentFlags(fs *pflag.FlagSet) {
	n := &o.NodeDeployment
	fs.BoolVar(&n.Enabled, "node-deployment", n.Enabled, "provision for one node alone, that of the environment variable NODE_NAME, beside the driver there, whose NodeGetInfo must tell accessible_topology; one such process on each node, without a lease")
	fs.BoolVar(&n.ImmediateBinding, "node-deployment-immediate-binding", n.ImmediateBinding, "with --node-deployment, share the claims also that wait for no pod; false: they are left to others")
	fs.DurationVar(&n.BaseDelay, "node-deployment-base-delay", n.BaseDelay, "longest wait before a node first tries to take a claim that waits for no pod; doubled each time")
	fs.DurationVar(&n.MaxDelay, "node-deployment-max-delay", n.MaxDelay, "longest wait between two tries to take a claim")
}

// enabled are the controllers that run.
func (o *Options) enabled() ([]string, error) {
	if o.NodeDeployment.Enabled {
		return nodeControllers(o.Controllers)
	}
	return enabledControllers(o.Controllers)
}

// nodeControllers resolves --controllers for one node: "*" is the provisioner.
func nodeControllers(selection []string) ([]string, error) {
	all, err := selected(selection)
	if err != nil {
		return nil, err
	}
	for _, name := range all {
		if name != controllerProvisioner && slices.Contains(selection, name) {
			return nil, fmt.Errorf("--controllers: --node-deployment is for the provisioner alone: run %s once for the cluster, and take it out here", name)
		}
	}
	if !slices.Contains(all, controllerProvisioner) {
		return nil, fmt.Errorf("--controllers=%s runs nothing with --node-deployment, which is for the provisioner alone", strings.Join(selection, ","))
	}
	return []string{controllerProvisioner}, nil
}

// validateNodeDeployment checks what goes with a provisioner for one node.
func (o *Options) validateNodeDeployment() []error {
	var errs []error
	n := o.NodeDeployment
	if n.BaseDelay <= 0 || n.MaxDelay < n.BaseDelay {
		errs = append(errs, fmt.Errorf("--node-deployment-base-delay=%v: must be positive, and at most --node-deployment-max-delay=%v", n.BaseDelay, n.MaxDelay))
	}
	if !n.Enabled {
		return errs
	}
	if o.Leader.Enabled && o.given("leader-election") {
		errs = append(errs, errors.New("--leader-election with --node-deployment: the process of each node acts, and nothing is elected; give only one of both"))
	}
	if o.Failover.Mode == string(failover.ModeEnforce) {
		errs = append(errs, errors.New("--failover-mode=enforce with --node-deployment: the provisioner alone runs on each node; move pods by one ha-sidecar for the cluster"))
	}
	return errs
}

// elects reports whether a lease is needed to act.
func (o *Options) elects() bool { return o.Leader.Enabled && !o.NodeDeployment.Enabled }

// ownNode is the node of this process; empty: it is for the whole cluster.
func (o *Options) ownNode() (string, error) {
	if !o.NodeDeployment.Enabled {
		return "", nil
	}
	name := os.Getenv(envNodeName)
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", &UsageError{fmt.Errorf("--node-deployment needs the environment variable %s, which is %q: set it from spec.nodeName", envNodeName, name)}
	}
	return name, nil
}

// node is what a provisioner for one node knows of it.
type node struct {
	name string
	here *topology.Here
}

// findNode asks the driver where the node is, for as long as it may take to answer
// at the start; nil without --node-deployment. Without a place volumes cannot be
// told apart: each process would delete those of all.
func (p *process) findNode(ctx context.Context) (*node, error) {
	if p.node == "" {
		return nil, nil
	}
	if !hasTopology(p.driver.Capabilities(), p.opts) {
		return nil, fmt.Errorf("--node-deployment needs a driver with VOLUME_ACCESSIBILITY_CONSTRAINTS, and the feature gate Topology: %s tells no place of its volumes, so that which are those of a node is not known; run one ha-sidecar for the cluster", p.driver.Name())
	}
	info, err := p.askNode(ctx)
	if err != nil {
		return nil, err
	}
	here, err := topology.NewHere(info.Segments)
	if err != nil {
		return nil, fmt.Errorf("--node-deployment: NodeGetInfo of driver %s on node %s: %w", p.driver.Name(), p.node, err)
	}
	return &node{name: p.node, here: here}, nil
}

// askNode calls the driver until it tells, or refuses to, or takes too long.
func (p *process) askNode(ctx context.Context) (csiclient.NodeInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.CSIConnectTimeout)
	defer cancel()
	var problem error
	for {
		info, err := p.driver.NodeInfo(ctx)
		if err == nil {
			return info, nil
		}
		// What broke off the last call says less than how the one before failed.
		if problem == nil || ctx.Err() == nil {
			problem = err
		}
		if volume.OutcomeOf(err) != volume.OutcomeRetry || ctx.Err() != nil {
			return info, fmt.Errorf("asking the driver where node %s is: %w; with --node-deployment its socket must have the Node service too", p.node, problem)
		}
		select {
		case <-ctx.Done():
		case <-clock.RealClock{}.After(p.opts.RetryIntervalStart):
		}
	}
}

// nodeJournalName is journalName for one node. What becomes of the driver's name
// has no dot, so that two pairs never have one name.
func nodeJournalName(driver, node string) string {
	const most = validation.DNS1123SubdomainMaxLength - len("-00000")
	name := journalName(driver) + "." + node
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(node))
	return journalName(driver) + "." + hex.EncodeToString(sum[:16])
}

// newSharer shares the claims with the other nodes.
func newSharer(d deps, parts *csiParts) (*nodeshare.Sharer, error) {
	n := d.opts.NodeDeployment
	at := d.node.here.Segment().Topology()
	return nodeshare.New(nodeshare.Config{
		Node: d.node.name, Place: d.node.here, Immediate: n.ImmediateBinding, BaseDelay: n.BaseDelay, MaxDelay: n.MaxDelay,
		HasRoom: func(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (bool, error) {
			if !d.driver.Capabilities().Has(csi.ControllerServiceCapability_RPC_GET_CAPACITY) {
				return true, nil
			}
			return parts.HasRoom(ctx, d.driver, claim, class, at)
		},
		Client: d.clients.Work, Classes: d.shared.Storage().V1().StorageClasses().Lister(), Timeout: d.opts.provisionerTimeout(),
	})
}
