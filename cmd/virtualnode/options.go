package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode"
)

// options are the flags.
type options struct {
	cfg         virtualnode.Config
	kubeconfig  string
	control     string
	cpu, memory string
}

func newOptions() *options { return &options{} }

func (o *options) addFlags(fs *pflag.FlagSet) {
	c := &o.cfg
	fs.StringVar(&c.Name, "name", "", "name of the node; the kubeconfig must authenticate as system:node:<name>")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file")
	fs.StringVar(&c.RootDir, "root-dir", "", "directory for pods, mounts and state; keep it over restarts")
	fs.StringSliceVar(&c.CSINodeSockets, "csi-node-socket", nil, "CSI driver's node socket, unix:///path; repeat for more drivers")
	fs.StringVar(&o.control, "control", "", "unix socket to serve faults and status on; empty for none")
	fs.StringVar(&c.BootID, "boot-id", "", "boot ID to report; empty for a new one per boot")
	fs.StringVar(&c.Zone, "zone", "", "value of the label topology.kubernetes.io/zone; empty for none")
	fs.StringToStringVar(&c.Labels, "labels", nil, "further labels of the node, key=value,...")
	fs.StringVar(&o.cpu, "cpu", "4", "CPU capacity")
	fs.StringVar(&o.memory, "memory", "8Gi", "memory capacity")
	fs.Int64Var(&c.Pods, "pods", 110, "pod capacity")
	fs.BoolVar(&c.KeepContainers, "keep-containers", false, "leave containers and mounts alone when the agent is stopped")
	for _, d := range []struct {
		value    *time.Duration
		name     string
		fallback time.Duration
		usage    string
	}{
		{&c.LeaseDuration, "lease-duration", 40 * time.Second, "duration of the node's Lease"},
		{&c.LeaseRenewInterval, "lease-renew-interval", 10 * time.Second, "how often the Lease is renewed"},
		{&c.PingTimeout, "ping-timeout", 5 * time.Second, "how long the node's health check may take before the Lease is not renewed"},
		{&c.NodeStatusInterval, "node-status-interval", 5 * time.Minute, "how often an unchanged node status is written"},
		{&c.VolumeHealthInterval, "volume-health-interval", time.Minute, "how often the health of mounted volumes is asked"},
		{&c.HousekeepingInterval, "housekeeping-interval", 5 * time.Second, "how often leftovers are looked for"},
		{&c.RestartBackoff, "restart-backoff", 10 * time.Second, "delay of a container's second restart; doubles"},
		{&c.RestartBackoffMax, "restart-backoff-max", 5 * time.Minute, "largest delay of a restart"},
		{&c.CSITimeout, "csi-timeout", 2 * time.Minute, "deadline of a CSI call"},
		{&c.AttachTimeout, "attach-timeout", 2 * time.Minute, "how long one attempt waits for a volume to be attached"},
		{&c.APITimeout, "api-timeout", 10 * time.Second, "deadline of an API request"},
		{&c.ShutdownGrace, "shutdown-grace", 30 * time.Second, "largest grace of containers when the agent is stopped"},
	} {
		fs.DurationVar(d.value, d.name, d.fallback, d.usage)
	}
}

func (o *options) complete() (err error) {
	if err := required(map[string]string{"name": o.cfg.Name, "kubeconfig": o.kubeconfig, "root-dir": o.cfg.RootDir}); err != nil {
		return err
	}
	if o.cfg.RootDir, err = filepath.Abs(o.cfg.RootDir); err != nil {
		return fmt.Errorf("--root-dir: %w", err)
	}
	if o.cfg.CPU, err = resource.ParseQuantity(o.cpu); err != nil {
		return &usageError{fmt.Errorf("--cpu %q: %w", o.cpu, err)}
	}
	if o.cfg.Memory, err = resource.ParseQuantity(o.memory); err != nil {
		return &usageError{fmt.Errorf("--memory %q: %w", o.memory, err)}
	}
	return nil
}

func (o *options) run(ctx context.Context) error {
	if err := o.complete(); err != nil {
		return err
	}
	restConfig, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading --kubeconfig: %w", err)
	}
	o.cfg.Faults = virtualnode.NewFaults()
	if o.cfg.Client, err = newClient(restConfig, o.cfg.Faults); err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: o.cfg.Client.CoreV1().Events("")})
	o.cfg.Recorder = broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "virtualnode", Host: o.cfg.Name})
	agent, err := virtualnode.New(o.cfg)
	if err != nil {
		return err
	}
	return o.serve(klog.NewContext(ctx, klog.Background().WithValues("node", o.cfg.Name)), agent)
}

// serve runs the agent, and beside it the control socket until the agent ends.
func (o *options) serve(ctx context.Context, agent *virtualnode.Agent) error {
	group, ctx := errgroup.WithContext(ctx)
	controlCtx, stopControl := context.WithCancel(context.WithoutCancel(ctx))
	defer stopControl()
	if o.control != "" {
		group.Go(func() error { return agent.ServeControl(controlCtx, o.control) })
	}
	group.Go(func() error {
		defer stopControl()
		return agent.Run(ctx)
	})
	return group.Wait()
}

// newClient makes the connection pass through the faults. The rates are a
// kubelet's.
func newClient(cfg *rest.Config, faults *virtualnode.Faults) (kubernetes.Interface, error) {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = faults.Dialer(dialer.DialContext)
	cfg.QPS, cfg.Burst = 50, 100
	cfg.UserAgent = "virtualnode"
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making the client: %w", err)
	}
	return client, nil
}
