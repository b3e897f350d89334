package app

import (
	"bytes"
	"errors"
	v1 "k8s.io/api/core/v1"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// parseAll reads and checks flags as the command does.
func parseAll(t *testing.T, args ...string) (o *Options, stderr string, err error) {
	t.Helper()
	o = NewOptions()
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	var out bytes.Buffer
	fs.SetOutput(&out)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return o, out.String(), err
	}
	return o, out.String(), errors.Join(o.Validate()...)
}

// Every flag of external-attacher v4.13 is taken, so that its manifest starts
// ha-sidecar with another image alone.
func TestFlagsOfExternalAttacher(t *testing.T) {
	_, stderr, err := parseAll(t, strings.Fields(`--csi-address=/csi/csi.sock --timeout=60s --worker-threads=100
		--retry-interval-start=500ms --retry-interval-max=2m --resync=5m --reconcile-sync=2m --max-entries=100
		--default-fstype=ext4 --max-grpc-log-length=0 --kube-api-qps=50 --kube-api-burst=100
		--leader-election --leader-election-namespace=ns --leader-election-lease-duration=30s
		--leader-election-renew-deadline=20s --leader-election-retry-period=5s --leader-election-labels=a:b
		--metrics-address=:8080 --metrics-path=/m --kubeconfig=/k --automaxprocs
		--feature-gates=ReleaseLeaderElectionOnExit=true,MutableCSINodeAllocatableCount=false --v=5 --logging-format=text`)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"metrics-address", "feature-gates", "automaxprocs", "max-grpc-log-length"} {
		if strings.Count(stderr, "--"+flag) != 1 {
			t.Errorf("nothing is said of --%s, or too much: %q", flag, stderr)
		}
	}
}

// Every flag of external-provisioner v6.3 is taken too.
func TestFlagsOfExternalProvisioner(t *testing.T) {
	o, stderr, err := parseAll(t, strings.Fields(`--csi-address=/csi/csi.sock --timeout=150s --worker-threads=16
		--retry-interval-start=1s --retry-interval-max=2m --default-fstype=ext4 --extra-create-metadata=true
		--strict-topology --immediate-topology=false --controller-publish-readonly --prevent-volume-mode-conversion=false
		--volume-name-prefix=pvc-a --volume-name-uuid-length=32 --cloning-protection-threads=2 --snapshot-orphan-sweep-interval=0
		--enable-capacity --capacity-threads=2 --capacity-poll-interval=30s --capacity-ownerref-level=2 --capacity-for-immediate-binding
		--kube-api-qps=50 --kube-api-burst=100 --kube-api-capacity-qps=2 --kube-api-capacity-burst=4
		--leader-election --leader-election-namespace=ns --leader-election-lease-duration=30s
		--leader-election-renew-deadline=20s --leader-election-retry-period=5s --leader-election-labels=a:b
		--http-endpoint=:8080 --metrics-path=/m --enable-pprof --kubeconfig=/k --master=https://api --automaxprocs
		--node-deployment=false --node-deployment-immediate-binding=false --node-deployment-base-delay=1s --node-deployment-max-delay=2s
		--feature-gates=Topology=true,VolumeAttributesClass=true,CrossNamespaceVolumeDataSource=false,ReleaseLeaderElectionOnExit=true
		--v=5 --vmodule=a=1 --logging-format=text --log-flush-frequency=1s`)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"feature-gates", "automaxprocs", "master"} {
		if strings.Count(stderr, "Flag --"+flag+" ") != 1 {
			t.Errorf("nothing is said of --%s, or too much: %q", flag, stderr)
		}
	}
	if o.Leader.Labels["a"] != "b" || o.Upstream.Master != "https://api" || o.kubeconfig() != "/k" {
		t.Errorf("the labels are %v, the server is %q, the kubeconfig %q", o.Leader.Labels, o.Upstream.Master, o.kubeconfig())
	}
}

// TestKubeconfigOfTheEnvironment: external-provisioner takes it, and so does kubectl.
func TestKubeconfigOfTheEnvironment(t *testing.T) {
	t.Setenv("KUBECONFIG", "/env")
	for args, want := range map[string]string{"": "/env", "--kubeconfig=/flag": "/flag"} {
		if o, _, err := parseAll(t, strings.Fields(args)...); err != nil || o.kubeconfig() != want {
			t.Errorf("%q: %q, %v, want %q", args, o.kubeconfig(), err, want)
		}
	}
}

func TestMetricsAddress(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--metrics-address=:1"}, ":1"},
		{[]string{"--http-endpoint=:2"}, ":2"},
	} {
		if o, _, err := parseAll(t, tc.args...); err != nil || o.endpoint() != tc.want {
			t.Errorf("%q: %q, %v, want %q", tc.args, o.endpoint(), err, tc.want)
		}
	}
}

func TestUpstreamFlagsRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--metrics-address=:1 --http-endpoint=:2":             "give only --http-endpoint",
		"--feature-gates=Topologie=true":                      "Topologie is none of external-attacher's",
		"--feature-gates=CrossNamespaceVolumeDataSource=true": "alpha and not supported",
		"--feature-gates=ReleaseLeaderElectionOnExit=maybe":   "must be true or false",
		"--resync=10ms": "--resync=10ms: at least 1s",
		"--resync=-1s":  "--resync=-1s: at least 1s",
	} {
		if _, _, err := parseAll(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	_, want, _ := runMain(t, "version")
	if code, stdout, stderr := runMain(t, "--version"); code != exitOK || stdout != want || stderr != "" {
		t.Errorf("%d, %q, %q, want %q", code, stdout, stderr, want)
	}
}

// TestProvisionerThreads: each sidecar had its own default, which a common flag
// replaces.
func TestProvisionerThreads(t *testing.T) {
	for args, want := range map[string]int{
		"":                                100,
		"--worker-threads=7":              7,
		"--worker-threads=10":             10,
		"--provisioner-worker-threads=20": 20,
		"--worker-threads=7 --provisioner-worker-threads=20": 20,
	} {
		o, _, err := parseAll(t, strings.Fields(args)...)
		if err != nil || o.provisionerWorkers() != want {
			t.Errorf("%q: %d threads, %v; want %d", args, o.provisionerWorkers(), err, want)
		}
	}
}

// TestFeaturesCanBeSwitchedOff: the two gates of external-provisioner that are
// more than names.
func TestFeaturesCanBeSwitchedOff(t *testing.T) {
	for args, want := range map[string][2]bool{
		"":                               {true, true},
		"--feature-gates=Topology=true":  {true, true},
		"--feature-gates=Topology=false": {false, true},
		"--feature-gates=VolumeAttributesClass=0": {true, false},
	} {
		o, _, err := parseAll(t, strings.Fields(args)...)
		if got := [2]bool{o.Upstream.gate("Topology"), o.Upstream.gate("VolumeAttributesClass")}; err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", args, got, err, want)
		}
	}
}

// TestLimits: whoever gives one of the two gets the sidecars' default of the other.
func TestLimits(t *testing.T) {
	type limit struct {
		qps   float32
		burst int
	}
	for args, want := range map[string]struct{ all, capacity limit }{
		"":                                    {},
		"--kube-api-qps=7 --kube-api-burst=9": {all: limit{7, 9}},
		"--kube-api-qps=50":                   {all: limit{50, 10}},
		"--kube-api-burst=20":                 {all: limit{5, 20}},
		"--kube-api-capacity-qps=0.5":         {capacity: limit{0.5, 5}},
		"--kube-api-capacity-burst=2":         {capacity: limit{1, 2}},
		"--kube-api-capacity-qps=20 --kube-api-capacity-burst=40": {capacity: limit{20, 40}},
	} {
		o, stderr, err := parseAll(t, strings.Fields(args)...)
		if qps, burst := o.limit(); err != nil || stderr != "" || (limit{qps, burst}) != want.all {
			t.Errorf("%q: %v and %d, %q, %v; want %v", args, qps, burst, stderr, err, want.all)
		}
		if qps, burst := o.Capacity.limit(); (limit{qps, burst}) != want.capacity {
			t.Errorf("%q: %v and %d for capacity; want %v", args, qps, burst, want.capacity)
		}
	}
}

func TestVolumeNames(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{}
	claim.UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	for _, c := range []struct {
		prefix string
		length int
		want   string
	}{
		{"pvc", -1, "pvc-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"},
		{"vol", 12, "vol-0a1b2c3d4e5f"},
		{"vol", 32, "vol-0a1b2c3d4e5f60718293a4b5c6d7e8f9"},
	} {
		if got := volumeNamer(c.prefix, c.length)(claim); got != c.want {
			t.Errorf("%s, %d: %s, want %s", c.prefix, c.length, got, c.want)
		}
	}
}
