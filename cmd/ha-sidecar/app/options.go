package app

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/failover"
	"github.com/ha-sidecar/ha-sidecar/pkg/health"
)

// What the sidecars that are replaced take for the one of the two limits that is
// not given.
const (
	defaultQPS   = 5
	defaultBurst = 10
)

// Options are the command line.
type Options struct {
	CSIAddress         string
	CSIMaxReceiveBytes int
	CSIConnectTimeout  time.Duration
	Kubeconfig         string
	KubeAPIQPS         float32
	KubeAPIBurst       int
	Controllers        []string

	Timeout            time.Duration
	WorkerThreads      int
	RetryIntervalStart time.Duration
	RetryIntervalMax   time.Duration
	Attacher           AttacherOptions
	Provisioner        ProvisionerOptions
	NodeDeployment     NodeDeploymentOptions
	Capacity           CapacityOptions

	Health   HealthOptions
	Failover FailoverOptions
	Leader   LeaderOptions
	Upstream UpstreamOptions

	HTTPEndpoint string
	MetricsPath  string
	Profiles     bool
	DrainTimeout time.Duration
	Logs         *logsapi.LoggingConfiguration

	// given tells whether a flag was on the command line.
	given func(flag string) bool
}

// AttacherOptions override the plain flags for the attacher alone; zero means
// "as the plain flag says".
type AttacherOptions struct {
	Timeout            time.Duration
	WorkerThreads      int
	RetryIntervalStart time.Duration
	RetryIntervalMax   time.Duration
	DefaultFSType      string
	ReconcileSync      time.Duration
	Resync             time.Duration
	MaxEntries         int
	DetachOrphans      bool
	ManualDetachDelay  time.Duration
}

// HealthOptions configure health.
type HealthOptions struct {
	Interval       time.Duration
	Confirmations  int
	ConfirmAfter   time.Duration
	SuspectFor     time.Duration
	LegacyAbnormal string
	LeaseGrace     time.Duration
}

// FailoverOptions configure failover and hacontroller.
type FailoverOptions struct {
	Mode            string
	Fence           string
	MaxFailingNodes string
	// Policy holds the rest of what failover decides by.
	Policy        failover.Policy
	EvictDeadline time.Duration
	EvictGraceMax time.Duration
	OverridePDB   bool
}

// LeaderOptions configure the election.
type LeaderOptions struct {
	Enabled       bool
	Namespace     string
	LeaseDuration time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration
	Labels        map[string]string
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	policy := failover.DefaultPolicy("")
	return &Options{
		CSIAddress: "/run/csi/socket", CSIMaxReceiveBytes: 16 << 20, CSIConnectTimeout: 2 * time.Minute, Controllers: []string{"*"},
		Timeout: 15 * time.Second, WorkerThreads: 10,
		RetryIntervalStart: time.Second, RetryIntervalMax: 5 * time.Minute,
		Attacher: AttacherOptions{ReconcileSync: time.Minute, Resync: 10 * time.Minute},
		Health: HealthOptions{
			Interval: 30 * time.Second, Confirmations: 3, ConfirmAfter: 10 * time.Second,
			SuspectFor: 10 * time.Minute, LegacyAbnormal: string(health.LegacyReport), LeaseGrace: 20 * time.Second,
		},
		Failover: FailoverOptions{
			Mode: string(policy.Mode), Fence: string(policy.Fence), MaxFailingNodes: policy.MaxFailingNodes.String(), Policy: policy,
			EvictDeadline: time.Minute, EvictGraceMax: 30 * time.Second,
		},
		Leader: LeaderOptions{
			Enabled: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		},
		NodeDeployment: defaultNodeDeploymentOptions(),
		Provisioner:    defaultProvisionerOptions(), Capacity: defaultCapacityOptions(),
		MetricsPath: "/metrics", DrainTimeout: 20 * time.Second,
		Logs:  logs.NewOptions(),
		given: func(string) bool { return false },
	}
}

// AddFlags registers every flag.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.CSIAddress, "csi-address", o.CSIAddress, "path or unix:// URL of the CSI driver's socket")
	fs.IntVar(&o.CSIMaxReceiveBytes, "csi-max-receive-bytes", o.CSIMaxReceiveBytes, "largest reply accepted from the driver, in bytes")
	fs.DurationVar(&o.CSIConnectTimeout, "csi-connect-timeout", o.CSIConnectTimeout, "how long the driver may take to answer at the start")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "path of a kubeconfig; empty: that of the environment variable KUBECONFIG, else the Pod's ServiceAccount")
	fs.Float32Var(&o.KubeAPIQPS, "kube-api-qps", o.KubeAPIQPS, fmt.Sprintf("requests per second to the API server; 0: %d with --kube-api-burst, else no limit where the server has priority and fairness, and 50 where not", defaultQPS))
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", o.KubeAPIBurst, fmt.Sprintf("burst of --kube-api-qps; 0: %d", defaultBurst))
	fs.StringSliceVar(&o.Controllers, "controllers", o.Controllers, "controllers to run: "+controllerNames()+`; "*" is all, "-name" takes one out`)
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "deadline of one call to the driver; when it is lowered, --hold-off must be at least the old value until all replicas have the new one")
	fs.IntVar(&o.WorkerThreads, "worker-threads", o.WorkerThreads, fmt.Sprintf("volumes worked on at once, per lane; the provisioner takes %d unless this flag is given", defaultProvisionerThreads))
	fs.DurationVar(&o.RetryIntervalStart, "retry-interval-start", o.RetryIntervalStart, "first wait after a failed operation; doubled each time")
	fs.DurationVar(&o.RetryIntervalMax, "retry-interval-max", o.RetryIntervalMax, "longest wait after a failed operation")
	fs.StringVar(&o.HTTPEndpoint, "http-endpoint", o.HTTPEndpoint, "address, such as :8080, of /healthz, /livez, /readyz, /metrics and, on the loopback interface, /debug; empty: none")
	fs.StringVar(&o.MetricsPath, "metrics-path", o.MetricsPath, "path of the metrics")
	fs.BoolVar(&o.Profiles, "enable-pprof", o.Profiles, "serve profiles of the process at /debug/pprof/ of --http-endpoint, on the loopback interface")
	fs.DurationVar(&o.DrainTimeout, "drain-timeout", o.DrainTimeout, "how long calls to the driver under way may take to end on SIGTERM; give the Pod 10s more")
	o.addAttacherFlags(fs)
	o.addProvisionerFlags(fs)
	o.addNodeDeploymentFlags(fs)
	o.addCapacityFlags(fs)
	o.given = fs.Changed
	o.addHealthFlags(fs)
	o.addFailoverFlags(fs)
	o.addLeaderFlags(fs)
	o.addUpstreamFlags(fs)
	logsapi.AddFlags(o.Logs, fs)
}

func (o *Options) addAttacherFlags(fs *pflag.FlagSet) {
	a := &o.Attacher
	fs.DurationVar(&a.Timeout, "attacher-timeout", a.Timeout, "--timeout for the attacher alone; 0: the same")
	fs.IntVar(&a.WorkerThreads, "attacher-worker-threads", a.WorkerThreads, "--worker-threads for the attacher alone; 0: the same")
	fs.DurationVar(&a.RetryIntervalStart, "attacher-retry-interval-start", a.RetryIntervalStart, "--retry-interval-start for the attacher alone; 0: the same")
	fs.DurationVar(&a.RetryIntervalMax, "attacher-retry-interval-max", a.RetryIntervalMax, "--retry-interval-max for the attacher alone; 0: the same")
	fs.DurationVar(&a.ReconcileSync, "reconcile-sync", a.ReconcileSync, "time between two looks at where the driver says that its volumes are published; 0: never")
	fs.DurationVar(&a.Resync, "resync", a.Resync, "time between two looks at what is attached and should not be, or should be and is not; 0: never")
	fs.IntVar(&a.MaxEntries, "max-entries", a.MaxEntries, "entries asked for per page of a list of the driver's; 0: 500")
	fs.BoolVar(&a.DetachOrphans, "detach-orphans", a.DetachOrphans, "detach volumes of the cluster that the driver lists as published to one of its nodes, for no VolumeAttachment, twice in a row; else they are only told of")
	fs.DurationVar(&a.ManualDetachDelay, "manual-detach-delay", a.ManualDetachDelay, "for how long at most a volume is not detached whose VolumeAttachment was deleted by hand while a Ready node uses it, so that its pods can be stopped first; 0: it is detached at once, and an event tells of it")
	fs.StringVar(&a.DefaultFSType, "default-fstype", a.DefaultFSType, "filesystem type of volumes that name none; empty: the driver's own")
}

func (o *Options) addHealthFlags(fs *pflag.FlagSet) {
	h := &o.Health
	fs.DurationVar(&h.Interval, "health-interval", h.Interval, "time between two sweeps over the driver's volumes")
	fs.IntVar(&h.Confirmations, "health-confirmations", h.Confirmations, "consecutive sweeps that must agree before a verdict is acted on")
	fs.DurationVar(&h.ConfirmAfter, "health-confirm-after", h.ConfirmAfter, "age that a status stored by the kubelet must reach before it is acted on")
	fs.DurationVar(&h.SuspectFor, "suspect-for", h.SuspectFor, "how long a node that failed a volume is not trusted with it again; doubles up to 1h")
	fs.StringVar(&h.LegacyAbnormal, "legacy-abnormal", h.LegacyAbnormal, "what VolumeCondition.abnormal of CSI 1.12 and older means: report, or failover")
	fs.DurationVar(&h.LeaseGrace, "lease-grace", h.LeaseGrace, "how old a node's heartbeat may be, by this process's clock, for its statuses to be believed")
}

func (o *Options) addFailoverFlags(fs *pflag.FlagSet) {
	f := &o.Failover
	fs.StringVar(&f.Mode, "failover-mode", f.Mode, "off; observe: report what would be done; enforce: move pods")
	fs.StringVar(&f.Fence, "fence", f.Fence, "what counts as a fence: none; unpublish, if ControllerUnpublishVolume of this driver revokes access")
	fs.StringVar(&f.MaxFailingNodes, "max-failing-nodes", f.MaxFailingNodes, "brake: nodes, as a number or a percentage of those that carry the driver, that may fail at once before nothing is moved; never half or more; 100% switches it off")
	fs.DurationVar(&f.Policy.StormCooldown, "storm-cooldown", f.Policy.StormCooldown, "how long the failing nodes must stay under the brake before it is released")
	fs.DurationVar(&f.Policy.HoldOff, "hold-off", f.Policy.HoldOff, "how long nothing is moved after a start or a change of leader, and no call is made for what an earlier leader may have calls under way for; the latter at least --timeout")
	fs.IntVar(&f.Policy.MovesPerMinute, "moves-per-minute", f.Policy.MovesPerMinute, "brake: pods moved per minute")
	b := &f.Policy.Backoff
	fs.IntVar(&b.Free, "workload-free-moves", b.Free, "moves of one workload in a row that are not delayed")
	fs.DurationVar(&b.Initial, "workload-backoff-initial", b.Initial, "delay of a workload's next move after those; doubled each time")
	fs.DurationVar(&b.Max, "workload-backoff-max", b.Max, "longest such delay")
	fs.DurationVar(&f.EvictDeadline, "evict-deadline", f.EvictDeadline, "how long pods on a Ready node may take to go after being asked")
	fs.DurationVar(&f.EvictGraceMax, "evict-grace-max", f.EvictGraceMax, "upper limit of the grace period that evicted pods get")
	fs.BoolVar(&f.OverridePDB, "override-pdb", f.OverridePDB, "fence and force pods that a PodDisruptionBudget protects, at the deadline")
}

func (o *Options) addLeaderFlags(fs *pflag.FlagSet) {
	l := &o.Leader
	fs.BoolVar(&l.Enabled, "leader-election", l.Enabled, "act only while holding the leases")
	fs.StringVar(&l.Namespace, "leader-election-namespace", l.Namespace, "namespace of the leases; empty: the Pod's own")
	fs.DurationVar(&l.LeaseDuration, "leader-election-lease-duration", l.LeaseDuration, "how long others wait for a lease that is not renewed")
	fs.DurationVar(&l.RenewDeadline, "leader-election-renew-deadline", l.RenewDeadline, "how long the leader acts without having renewed")
	fs.DurationVar(&l.RetryPeriod, "leader-election-retry-period", l.RetryPeriod, "time between two attempts to take or renew a lease")
	fs.Var(labelList{&l.Labels}, "leader-election-labels", "labels of the leases")
}

// limit is that of requests to the API server; zero both: none.
func (o *Options) limit() (qps float32, burst int) {
	return whole(o.KubeAPIQPS, o.KubeAPIBurst, defaultQPS, defaultBurst)
}

// whole completes a limit of which one half may be missing; zero both: no limit.
func whole(qps float32, burst int, otherQPS float32, otherBurst int) (float32, int) {
	if qps == 0 && burst == 0 {
		return 0, 0
	}
	return pick(qps, otherQPS), pick(burst, otherBurst)
}
