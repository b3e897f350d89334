package app

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ha-sidecar/ha-sidecar/pkg/failover"
	"github.com/ha-sidecar/ha-sidecar/pkg/health"
)

// reservedPaths are served by others than the metrics; debug pages are below
// /debug.
var reservedPaths = []string{
	"/healthz", "/healthz/leader-election", "/livez", "/readyz",
	"/debug/leader", "/debug/failover", "/debug/health", "/debug/attach", "/debug/provisioner",
}

// metricsPath keeps patterns out that the HTTP server would take for more than a
// path.
var metricsPath = regexp.MustCompile(`^/[A-Za-z0-9/_.-]*$`)

// Validate returns every mistake, each with the flag's name and what to do.
func (o *Options) Validate() []error {
	errs := o.validateCommon()
	enabled, err := o.enabled()
	if err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, o.validateFailover(enabled)...)
	return append(errs, o.validateLeader()...)
}

func (o *Options) validateCommon() []error {
	var errs []error
	if o.CSIAddress == "" {
		errs = append(errs, errors.New("--csi-address is empty: give the path of the driver's socket"))
	}
	switch {
	case strings.Contains(o.CSIAddress, "://") && !strings.HasPrefix(o.CSIAddress, "unix://"):
		errs = append(errs, fmt.Errorf("--csi-address=%s: only unix sockets are supported", o.CSIAddress))
	case o.CSIAddress != "" && !filepath.IsAbs(strings.TrimPrefix(o.CSIAddress, "unix://")):
		errs = append(errs, fmt.Errorf("--csi-address=%s: must be an absolute path", o.CSIAddress))
	}
	if !metricsPath.MatchString(o.MetricsPath) || slices.Contains(reservedPaths, o.MetricsPath) || strings.HasPrefix(o.MetricsPath, profiles) {
		errs = append(errs, fmt.Errorf("--metrics-path=%s: must be a plain path such as /metrics, and none of %s", o.MetricsPath, strings.Join(reservedPaths, ", ")))
	}
	if o.Profiles && o.endpoint() == "" {
		errs = append(errs, errors.New("--enable-pprof needs --http-endpoint, where the profiles are"))
	}
	if o.KubeAPIQPS < 0 || o.KubeAPIBurst < 0 {
		errs = append(errs, fmt.Errorf("--kube-api-qps=%v and --kube-api-burst=%d: must not be negative; leave both out for no limit", o.KubeAPIQPS, o.KubeAPIBurst))
	}
	for flag, d := range map[string]time.Duration{
		"timeout": o.Timeout, "retry-interval-start": o.RetryIntervalStart, "health-interval": o.Health.Interval,
		"health-confirm-after": o.Health.ConfirmAfter, "suspect-for": o.Health.SuspectFor, "lease-grace": o.Health.LeaseGrace,
		"evict-deadline": o.Failover.EvictDeadline, "drain-timeout": o.DrainTimeout, "csi-connect-timeout": o.CSIConnectTimeout,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("--%s=%v: must be positive", flag, d))
		}
	}
	if o.RetryIntervalMax < o.RetryIntervalStart {
		errs = append(errs, errors.New("--retry-interval-max: must not be shorter than --retry-interval-start"))
	}
	errs = append(errs, o.validateAttacher()...)
	errs = append(errs, o.validateProvisioner()...)
	errs = append(errs, o.validateNodeDeployment()...)
	errs = append(errs, o.validateCapacity()...)
	errs = append(errs, o.validateUpstream()...)
	if o.Failover.EvictGraceMax < time.Second {
		errs = append(errs, fmt.Errorf("--evict-grace-max=%v: at least 1s, since 0 removes a pod that may still run", o.Failover.EvictGraceMax))
	}
	for flag, n := range map[string]int{
		"worker-threads": o.WorkerThreads, "health-confirmations": o.Health.Confirmations, "csi-max-receive-bytes": o.CSIMaxReceiveBytes,
	} {
		if n <= 0 {
			errs = append(errs, fmt.Errorf("--%s=%d: must be positive", flag, n))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

// validateAttacher checks what overrides the plain flags; 0 is unset.
func (o *Options) validateAttacher() []error {
	var errs []error
	a := o.Attacher
	for flag, d := range map[string]time.Duration{
		"attacher-timeout": a.Timeout, "attacher-retry-interval-start": a.RetryIntervalStart, "attacher-retry-interval-max": a.RetryIntervalMax,
		"manual-detach-delay": a.ManualDetachDelay,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("--%s=%v: must not be negative", flag, d))
		}
	}
	if a.ReconcileSync < 0 || a.ReconcileSync > 0 && a.ReconcileSync < time.Second {
		errs = append(errs, fmt.Errorf("--reconcile-sync=%v: at least 1s, or 0 for never", a.ReconcileSync))
	}
	if a.Resync < 0 || a.Resync > 0 && a.Resync < time.Second {
		errs = append(errs, fmt.Errorf("--resync=%v: at least 1s, or 0 for never", a.Resync))
	}
	if a.MaxEntries < 0 || a.MaxEntries > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("--max-entries=%d: must not be negative, nor more than %d", a.MaxEntries, math.MaxInt32))
	}
	if a.DetachOrphans && a.ReconcileSync == 0 {
		errs = append(errs, errors.New("--detach-orphans needs --reconcile-sync, by which orphans are found"))
	}
	if a.WorkerThreads < 0 {
		errs = append(errs, fmt.Errorf("--attacher-worker-threads=%d: must not be negative", a.WorkerThreads))
	}
	if pick(a.RetryIntervalMax, o.RetryIntervalMax) < pick(a.RetryIntervalStart, o.RetryIntervalStart) && o.RetryIntervalMax >= o.RetryIntervalStart {
		errs = append(errs, errors.New("--attacher-retry-interval-max: must not be shorter than --attacher-retry-interval-start, with the plain flags for what is not given"))
	}
	return errs
}

func (o *Options) validateFailover(enabled []string) []error {
	var errs []error
	if legacy := health.LegacyAbnormal(o.Health.LegacyAbnormal); legacy != health.LegacyReport && legacy != health.LegacyFailover {
		errs = append(errs, fmt.Errorf("--legacy-abnormal=%s: use report or failover", legacy))
	}
	if o.Failover.Fence == string(failover.FenceNetwork) {
		errs = append(errs, errors.New("--fence=network fences failed nodes, which this version does not act on: use unpublish or none"))
	}
	if err := o.policy("driver.example.com").Validate(); err != nil {
		errs = append(errs, err)
	}
	if o.Failover.Mode != string(failover.ModeEnforce) || o.NodeDeployment.Enabled {
		return errs
	}
	if !o.Leader.Enabled {
		errs = append(errs, errors.New("--failover-mode=enforce with --leader-election=false: two processes could act at once; leave the election on"))
	}
	for _, needed := range []string{controllerHealth, controllerFailover, controllerAttacher} {
		if !slices.Contains(enabled, needed) {
			errs = append(errs, fmt.Errorf("--failover-mode=enforce needs the %s controller: add it to --controllers", needed))
		}
	}
	return errs
}

func (o *Options) validateLeader() []error {
	l := o.Leader
	if !o.elects() {
		return nil
	}
	var errs []error
	// A Lease tells the others its duration in whole seconds.
	if l.LeaseDuration.Truncate(time.Second) <= l.RenewDeadline {
		errs = append(errs, fmt.Errorf("--leader-election-lease-duration=%v: must be longer, in whole seconds, than --leader-election-renew-deadline=%v", l.LeaseDuration, l.RenewDeadline))
	}
	for key, value := range l.Labels {
		if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("--leader-election-labels: %s=%s is no label: %s", key, value, problems[0]))
		}
	}
	if problems := validation.IsDNS1123Label(l.Namespace); l.Namespace != "" && len(problems) > 0 {
		errs = append(errs, fmt.Errorf("--leader-election-namespace=%s: is no name of a namespace: %s", l.Namespace, problems[0]))
	}
	if float64(l.RenewDeadline) <= leaderelection.JitterFactor*float64(l.RetryPeriod) || l.RetryPeriod <= 0 {
		errs = append(errs, fmt.Errorf("--leader-election-renew-deadline=%v: must be longer than %.1f times --leader-election-retry-period=%v, which must be positive",
			l.RenewDeadline, leaderelection.JitterFactor, l.RetryPeriod))
	}
	return errs
}

// policy is what failover decides by.
func (o *Options) policy(driver string) failover.Policy {
	policy := o.Failover.Policy
	policy.DriverName = driver
	policy.Mode, policy.Fence = failover.Mode(o.Failover.Mode), failover.Fence(o.Failover.Fence)
	policy.MaxFailingNodes = intstr.Parse(o.Failover.MaxFailingNodes)
	policy.StormWindow = health.ConfirmedWithin(o.Health.Interval, o.Health.Confirmations, o.Health.ConfirmAfter)
	return policy
}
