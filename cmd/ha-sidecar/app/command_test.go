package app

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/ha-sidecar/ha-sidecar/internal/version"
)

// main runs a command line that ends at once.
func runMain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// enforce is what may move pods, and is fine as it is.
var enforce = []string{"--failover-mode=enforce", "--fence=unpublish"}

// Each mistake is one line that names the flag and what to do, and exit code 2.
func TestMistakesInTheCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--no-such-flag"}, []string{"--no-such-flag"}},
		{[]string{"--timeout=soon"}, []string{"--timeout", "soon"}},
		{[]string{"start"}, []string{`unexpected argument "start"`}},
		{[]string{"version", "now"}, []string{`unexpected argument "now"`}},
		{[]string{"version", "--output=yaml"}, []string{`--output="yaml"`, "json"}},
		{[]string{"version", "--no-such-flag"}, []string{"--no-such-flag"}},
		{[]string{"--csi-address="}, []string{"--csi-address is empty", "give the path"}},
		{[]string{"--csi-address=tcp://1.2.3.4:5"}, []string{"--csi-address=tcp://1.2.3.4:5", "only unix sockets"}},
		{[]string{"--csi-address=csi.sock"}, []string{"--csi-address=csi.sock", "absolute"}},
		{[]string{"--csi-connect-timeout=0"}, []string{"--csi-connect-timeout=0s", "positive"}},
		{[]string{"--csi-max-receive-bytes=0"}, []string{"--csi-max-receive-bytes=0", "positive"}},
		{[]string{"--kube-api-qps=-1"}, []string{"--kube-api-qps=-1", "negative"}},
		{[]string{"--kube-api-burst=-1"}, []string{"--kube-api-burst=-1", "negative"}},
		{[]string{"--controllers=resizer"}, []string{"--controllers", `"resizer"`, "health, failover, provisioner, attacher"}},
		{[]string{"--controllers=-health,-failover,-provisioner,-attacher,*"}, []string{"--controllers", "runs nothing"}},
		{[]string{"--controllers=failover"}, []string{"--controllers", "failover needs health"}},
		{[]string{"--timeout=-1s"}, []string{"--timeout=-1s", "positive"}},
		{[]string{"--worker-threads=0"}, []string{"--worker-threads=0", "positive"}},
		{[]string{"--retry-interval-start=0"}, []string{"--retry-interval-start=0s", "positive"}},
		{[]string{"--retry-interval-start=2s", "--retry-interval-max=1s"}, []string{"--retry-interval-max", "--retry-interval-start"}},
		{[]string{"--attacher-timeout=-1s"}, []string{"--attacher-timeout=-1s", "negative"}},
		{[]string{"--attacher-worker-threads=-1"}, []string{"--attacher-worker-threads=-1", "negative"}},
		{[]string{"--attacher-retry-interval-start=10m"}, []string{"--attacher-retry-interval-max", "--attacher-retry-interval-start"}},
		{[]string{"--provisioner-timeout=-1s"}, []string{"--provisioner-timeout=-1s", "negative"}},
		{[]string{"--provisioner-worker-threads=-1"}, []string{"--provisioner-worker-threads", "negative"}},
		{[]string{"--provisioner-retry-interval-start=10m"}, []string{"--provisioner-retry-interval-max", "--provisioner-retry-interval-start"}},
		{[]string{"--snapshot-orphan-sweep-interval=-1s"}, []string{"--snapshot-orphan-sweep-interval=-1s", "negative"}},
		{[]string{"--cloning-protection-threads=0"}, []string{"--cloning-protection-threads", "positive"}},
		{[]string{"--capacity-threads=0"}, []string{"--capacity-threads=0", "positive"}},
		{[]string{"--capacity-poll-interval=0"}, []string{"--capacity-poll-interval=0s", "positive"}},
		{[]string{"--kube-api-capacity-qps=-1"}, []string{"--kube-api-capacity-qps=-1", "negative"}},
		{[]string{"--kube-api-capacity-burst=-1"}, []string{"--kube-api-capacity-burst=-1", "negative"}},
		{[]string{"--capacity-ownerref-level=-2"}, []string{"--capacity-ownerref-level=-2", "no owner"}},
		{[]string{"--volume-name-prefix=PVC_"}, []string{"--volume-name-prefix=PVC_", "name of a PersistentVolume"}},
		{[]string{"--volume-name-uuid-length=0"}, []string{"--volume-name-uuid-length=0", "8 to 32"}},
		{[]string{"--volume-name-uuid-length=33"}, []string{"--volume-name-uuid-length=33", "8 to 32"}},
		{[]string{"--node-deployment-base-delay=0"}, []string{"--node-deployment-base-delay=0s", "positive"}},
		{[]string{"--node-deployment-base-delay=2m"}, []string{"--node-deployment-base-delay=2m0s", "--node-deployment-max-delay=1m0s"}},
		{[]string{"--node-deployment", "--leader-election"}, []string{"--leader-election with --node-deployment", "only one"}},
		{append(enforce, "--node-deployment"), []string{"--failover-mode=enforce with --node-deployment", "one ha-sidecar for the cluster"}},
		{[]string{"--node-deployment", "--controllers=attacher"}, []string{"--controllers", "the provisioner alone"}},
		{[]string{"--health-interval=0"}, []string{"--health-interval=0s", "positive"}},
		{[]string{"--health-confirmations=0"}, []string{"--health-confirmations=0", "positive"}},
		{[]string{"--health-confirm-after=0"}, []string{"--health-confirm-after=0s", "positive"}},
		{[]string{"--suspect-for=0"}, []string{"--suspect-for=0s", "positive"}},
		{[]string{"--lease-grace=0"}, []string{"--lease-grace=0s", "positive"}},
		{[]string{"--legacy-abnormal=ignore"}, []string{"--legacy-abnormal=ignore", "report or failover"}},
		{[]string{"--failover-mode=on"}, []string{"--failover-mode=on", "off, observe or enforce"}},
		{[]string{"--fence=stonith"}, []string{"--fence=stonith"}},
		{[]string{"--fence=network"}, []string{"--fence=network", "use unpublish or none"}},
		{[]string{"--max-failing-nodes=many"}, []string{"--max-failing-nodes=many", "percentage"}},
		{[]string{"--max-failing-nodes=200%"}, []string{"--max-failing-nodes=200%", "between"}},
		{[]string{"--moves-per-minute=0"}, []string{"--moves-per-minute=0", "at least 1"}},
		{[]string{"--hold-off=-1s"}, []string{"--hold-off=-1s", "negative"}},
		{[]string{"--storm-cooldown=-1s"}, []string{"--storm-cooldown=-1s", "negative"}},
		{[]string{"--workload-free-moves=0"}, []string{"--workload-free-moves=0", "at least 1"}},
		{[]string{"--evict-deadline=0"}, []string{"--evict-deadline=0s", "positive"}},
		{[]string{"--evict-grace-max=0"}, []string{"--evict-grace-max=0s", "at least 1s"}},
		{append(enforce, "--leader-election=false"), []string{"--failover-mode=enforce with --leader-election=false", "leave the election on"}},
		{append(enforce, "--controllers=health,failover"), []string{"--failover-mode=enforce needs the attacher", "--controllers"}},
		{append(enforce, "--controllers=attacher"), []string{"needs the health", "needs the failover"}},
		{[]string{"--leader-election-lease-duration=10s"}, []string{"--leader-election-lease-duration=10s", "--leader-election-renew-deadline=10s"}},
		{[]string{"--leader-election-lease-duration=10.9s"}, []string{"--leader-election-lease-duration=10.9s", "whole seconds"}},
		{[]string{"--leader-election-retry-period=9s"}, []string{"--leader-election-renew-deadline=10s", "--leader-election-retry-period=9s"}},
		{[]string{"--leader-election-retry-period=0"}, []string{"--leader-election-retry-period=0s", "positive"}},
		{[]string{"--leader-election-namespace=A_B"}, []string{"--leader-election-namespace=A_B"}},
		{[]string{"--leader-election-labels=a=b c"}, []string{"--leader-election-labels", "a=b c"}},
		{[]string{"--manual-detach-delay=-1s"}, []string{"--manual-detach-delay=-1s", "not be negative"}},
		{[]string{"--drain-timeout=0"}, []string{"--drain-timeout=0s", "positive"}},
		{[]string{"--metrics-path="}, []string{"--metrics-path=", "/metrics"}},
		{[]string{"--enable-pprof"}, []string{"--enable-pprof", "--http-endpoint"}},
		{[]string{"--metrics-path=/debug/pprof/heap"}, []string{"--metrics-path=/debug/pprof/heap", "plain path"}},
		{[]string{"--metrics-path=/readyz"}, []string{"--metrics-path=/readyz", "none of"}},
		{[]string{"--metrics-path=/{"}, []string{"--metrics-path=/{", "plain path"}},
		{[]string{"--logging-format=xml"}, []string{"xml"}},
		// All at once, not one after the other.
		{[]string{"--timeout=0", "--fence=network", "--moves-per-minute=0"}, []string{"--timeout", "--fence", "--moves-per-minute"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			code, _, stderr := runMain(t, c.args...)
			if code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "ha-sidecar: ") {
				t.Errorf("stderr %q, want one line", stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q lacks %q", stderr, want)
				}
			}
		})
	}
}

func parse(t *testing.T, args ...string) *Options {
	t.Helper()
	o := NewOptions()
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestGoodCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{},
		enforce,
		{"--failover-mode=enforce"},
		{"--leader-election=false"},
		{"--leader-election=false", "--leader-election-lease-duration=0"},
		{"--controllers=attacher"},
		{"--controllers=*,-failover"},
		{"--failover-mode=off"},
		{"--kube-api-qps=5", "--kube-api-burst=10"},
		{"--csi-address=unix:///run/csi/socket"},
		{"--max-failing-nodes=3"},
		{"--leader-election-lease-duration=4s", "--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s"},
		{"--leader-election-labels=app=a,example.com/b=c"},
		{"--legacy-abnormal=failover"},
	} {
		if errs := parse(t, args...).Validate(); len(errs) > 0 {
			t.Errorf("%q: %v", args, errs)
		}
	}
}

func TestUnderscoresInFlags(t *testing.T) {
	_, _, stderr := runMain(t, "--csi_address=", "--worker_threads=0")
	if !strings.Contains(stderr, "--csi-address is empty") || !strings.Contains(stderr, "--worker-threads=0") {
		t.Errorf("stderr %q: flags with underscores are not known", stderr)
	}
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := runMain(t, "version")
	if code != exitOK || stdout != version.Get().String()+"\n" || stderr != "" {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	code, stdout, _ = runMain(t, "version", "-o", "json")
	var info version.Info
	if err := json.Unmarshal([]byte(stdout), &info); code != exitOK || err != nil || info != version.Get() {
		t.Errorf("%d, %q, %v", code, stdout, err)
	}
}

func TestHelp(t *testing.T) {
	code, stdout, stderr := runMain(t, "--help")
	if code != exitOK || stderr != "" || !strings.Contains(stdout, "--csi-address") {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
}

// Flags are an interface: manifests name them. A change here is one that users
// see. Those of logging are not ours.
func TestFlags(t *testing.T) {
	o := NewOptions()
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	o.AddFlags(fs)
	var got []string
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Usage == "" {
			t.Errorf("--%s has no description", f.Name)
		}
		if !strings.HasPrefix(f.Name, "log") && f.Name != "v" && f.Name != "vmodule" {
			got = append(got, f.Name+"="+f.DefValue)
		}
	})
	want := strings.Fields(`
attacher-retry-interval-max=0s attacher-retry-interval-start=0s attacher-timeout=0s attacher-worker-threads=0 automaxprocs=false capacity-for-immediate-binding=false capacity-ownerref-level=1 capacity-poll-interval=1m0s capacity-threads=1 cloning-protection-threads=1 controller-publish-readonly=false
controllers=[*] csi-address=/run/csi/socket csi-connect-timeout=2m0s csi-max-receive-bytes=16777216
default-fstype= detach-orphans=false drain-timeout=20s enable-capacity=false enable-pprof=false evict-deadline=1m0s evict-grace-max=30s extra-create-metadata=false failover-mode=observe feature-gates=[] fence=none
health-confirm-after=10s health-confirmations=3 health-interval=30s hold-off=15s http-endpoint= immediate-topology=true
kube-api-burst=0 kube-api-capacity-burst=0 kube-api-capacity-qps=0 kube-api-qps=0 kubeconfig= leader-election=true leader-election-labels=
leader-election-lease-duration=15s leader-election-namespace= leader-election-renew-deadline=10s leader-election-retry-period=2s
lease-grace=20s legacy-abnormal=report manual-detach-delay=0s master= max-entries=0 max-failing-nodes=20% max-grpc-log-length=-1 metrics-address= metrics-path=/metrics moves-per-minute=120 node-deployment=false node-deployment-base-delay=20s node-deployment-immediate-binding=true node-deployment-max-delay=1m0s override-pdb=false
prevent-volume-mode-conversion=true provisioner-default-fstype= provisioner-retry-interval-max=0s provisioner-retry-interval-start=0s provisioner-timeout=0s provisioner-worker-threads=0
reconcile-sync=1m0s resync=10m0s retry-interval-max=5m0s retry-interval-start=1s snapshot-orphan-sweep-interval=5m0s storm-cooldown=5m0s strict-topology=false suspect-for=10m0s timeout=15s
volume-name-prefix=pvc volume-name-uuid-length=-1 worker-threads=10
workload-backoff-initial=1m0s workload-backoff-max=30m0s workload-free-moves=3`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}
