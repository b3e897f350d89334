package app

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// UpstreamOptions are flags of external-attacher and external-provisioner that are
// here for their manifests to work as they are. What they choose is settled, or
// has another name; but the gates Topology and VolumeAttributesClass can be
// switched off.
type UpstreamOptions struct {
	MetricsAddress string
	FeatureGates   map[string]string
	Master         string
}

// upstreamGates are the feature gates of external-attacher and external-provisioner.
// Leases are always released on exit here, and the error code is always written.
var upstreamGates = []string{
	"AllAlpha", "AllBeta", "MutableCSINodeAllocatableCount", "ReleaseLeaderElectionOnExit",
	"Topology", "VolumeAttributesClass", gateCrossNamespace,
}

// gateCrossNamespace is alpha, and there is none of it here.
const gateCrossNamespace = "CrossNamespaceVolumeDataSource"

// addUpstreamFlags registers them: not in the help, and with a word on stderr
// for whoever gives one.
func (o *Options) addUpstreamFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Upstream.Master, "master", "", "URL of the API server")
	if err := fs.MarkDeprecated("master", "name the server in the file of --kubeconfig"); err != nil {
		panic(err) // the name is not registered
	}
	fs.StringVar(&o.Upstream.MetricsAddress, "metrics-address", "", "address of the metrics")
	fs.StringToStringVar(&o.Upstream.FeatureGates, "feature-gates", nil, "feature gates of external-attacher and external-provisioner")
	fs.Bool("automaxprocs", false, "use no more threads than the container has CPUs")
	fs.Int("max-grpc-log-length", -1, "longest logged call to the driver")
	for flag, instead := range map[string]string{
		"metrics-address":     "it is taken for --http-endpoint, which serves the same and more",
		"feature-gates":       "only Topology=false and VolumeAttributesClass=false have an effect: what the others switch is always on",
		"automaxprocs":        "it is always on",
		"max-grpc-log-length": "calls to the driver are logged from -v=5 on, by their size alone where they are long",
	} {
		if err := fs.MarkDeprecated(flag, instead); err != nil {
			panic(err) // one of the names is not registered
		}
	}
}

// kubeconfig is the path of a kubeconfig; empty: the Pod's ServiceAccount.
func (o *Options) kubeconfig() string {
	if o.Kubeconfig == "" {
		return os.Getenv("KUBECONFIG")
	}
	return o.Kubeconfig
}

// endpoint is where to serve HTTP.
func (o *Options) endpoint() string {
	if o.HTTPEndpoint == "" {
		return o.Upstream.MetricsAddress
	}
	return o.HTTPEndpoint
}

func (o *Options) validateUpstream() []error {
	var errs []error
	if o.HTTPEndpoint != "" && o.Upstream.MetricsAddress != "" {
		errs = append(errs, errors.New("--metrics-address and --http-endpoint: give only --http-endpoint"))
	}
	for gate, value := range o.Upstream.FeatureGates {
		if !slices.Contains(upstreamGates, gate) {
			errs = append(errs, fmt.Errorf("--feature-gates: %s is none of external-attacher's or external-provisioner's (%s)", gate, strings.Join(upstreamGates, ", ")))
		}
		if _, err := strconv.ParseBool(value); err != nil {
			errs = append(errs, fmt.Errorf("--feature-gates: %s=%s: must be true or false", gate, value))
		}
		if gate == gateCrossNamespace && o.Upstream.gate(gate) {
			errs = append(errs, fmt.Errorf("--feature-gates: %s is alpha and not supported: take it out", gate))
		}
	}
	return errs
}
