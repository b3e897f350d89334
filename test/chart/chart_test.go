// Package chart tests what the Helm chart renders, and what it refuses to
// render.
package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// driver are the values that a chart cannot do without.
var driver = []string{"driver.name=csi.example.com", "driver.image.repository=csi-example-driver", "driver.image.tag=v1"}

// template runs helm template on a chart with values as for --set-json where
// they begin with a bracket, and else as for --set.
func template(t *testing.T, chart string, values ...string) (string, error) {
	t.Helper()
	helm, err := rig.Program("helm")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"template", "csi", chart, "--namespace", "csi-example"}
	for _, v := range values {
		set := "--set"
		if strings.Contains(v, "=[") {
			set = "--set-json"
		}
		args = append(args, set, v)
	}
	out, err := exec.CommandContext(t.Context(), helm, args...).CombinedOutput()
	return string(out), err
}

func path(t *testing.T) string {
	t.Helper()
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "kubernetes", "ha-sidecar")
}

// with adds values to those that the chart cannot do without.
func with(values ...string) []string { return append(append([]string{}, driver...), values...) }

// What the program would refuse, or run without the roles it needs, is refused
// before anything is installed.
func TestBadValuesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		values []string
		want   string
	}{
		"no name":                {driver[1:], "driver.name is required"},
		"a name that is none":    {append([]string{"driver.name=csi example"}, driver[1:]...), "does not match pattern"},
		"no repository":          {driver[:1], "driver.image.repository is required"},
		"no tag":                 {driver[:2], "driver.image.tag or driver.image.digest is required"},
		"a numeric tag":          {with("driver.image.tag=1"), "want string"},
		"an unknown value":       {with("failover.moed=enforce"), "not allowed"},
		"an unknown mode":        {with("failover.mode=on"), "must be one of"},
		"a share over 100%":      {with("failover.maxFailingNodes=101%"), "does not match pattern"},
		"no node may fail":       {with("failover.maxFailingNodes=0"), "minimum"},
		"a number for a time":    {with("health.interval=30"), "want string"},
		"no interval":            {with("health.interval=0s"), "health.interval=0s: must be positive"},
		"no grace":               {with("failover.evictGraceMax=500ms"), "at least 1s"},
		"a short lease":          {with("leaderElection.leaseDuration=5s"), "longer, in whole seconds, than renewDeadline=10s"},
		"a lease cut to seconds": {with("leaderElection.leaseDuration=10.9s"), "longer, in whole seconds, than renewDeadline=10s"},
		"a short renewal":        {with("leaderElection.renewDeadline=2.4s"), "1.2 times retryPeriod=2s"},
		"nothing runs":           {with("sidecar.controllers={-health,-failover,-provisioner,-attacher}"), "runs nothing"},
		"failover alone":         {with("sidecar.controllers={failover}"), "failover needs health"},
		"enforce, no failover":   {with("failover.mode=enforce", "sidecar.controllers={attacher}"), "enforce needs health, failover and attacher"},
		"enforce, no attacher":   {with("failover.mode=enforce", "sidecar.controllers={*,-attacher}"), "enforce needs health, failover and attacher"},
		"enforce, no election":   {with("failover.mode=enforce", "replicas=1", "sidecar.extraArgs={--leader-election=false}"), "two processes could act"},
		"two, no election":       {with("sidecar.extraArgs={--leader-election=false}"), "needs replicas=1"},
		"a mode by flag":         {with("sidecar.extraArgs={--failover_mode=enforce}"), "set failover.mode instead"},
		"capacity by flag":       {with("sidecar.extraArgs={--enable-capacity}"), "set provisioner.capacity instead"},
		"per node by flag":       {with("sidecar.extraArgs={--node-deployment}"), "set provisioner.nodeDeployment.enabled instead"},
		"per node, a health":     {perNode("sidecar.controllers={*,health}"), "take health out here, and run it once for the cluster"},
		"per node, an attacher":  {perNode("sidecar.controllers={provisioner,attacher}"), "take attacher out here, and run it once for the cluster"},
		"per node, nothing runs": {perNode("sidecar.controllers={*,-provisioner}"), "runs nothing with provisioner.nodeDeployment"},
		"per node, enforce":      {perNode("failover.mode=enforce"), "pods are moved by one ha-sidecar for the cluster"},
		"per node, an election":  {perNode("sidecar.extraArgs={--leader-election}"), "nothing is elected: take it out"},
		"per node, a Deployment": {perNode("provisioner.capacityOwnerLevel=2"), "use 0, the Pod, or 1, the DaemonSet"},
		"per node, no wait":      {perNode("provisioner.nodeDeployment.baseDelay=0s"), "baseDelay=0s: must be positive"},
		"per node, a short wait": {perNode("provisioner.nodeDeployment.maxDelay=19.9s"), "maxDelay=19.9s: must not be shorter than baseDelay=20s"},
		"per node, two at once":  {perNode("provisioner.nodeDeployment.maxSurge=1"), "not allowed"},
		"per node, no update":    {perNode("provisioner.nodeDeployment.maxUnavailable=0"), "minimum"},
		"a socket nowhere":       {perNode("provisioner.nodeDeployment.socketDir=csi"), "does not match pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := template(t, path(t), c.values...)
			if err == nil {
				t.Fatalf("it was rendered with %v", c.values)
			}
			if !strings.Contains(out, c.want) {
				t.Errorf("helm says %q, want %q in it", out, c.want)
			}
		})
	}
}

func TestGoodValuesAreRendered(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for name, c := range map[string]struct {
		values []string
		want   string
	}{
		"a digest and no tag":     {[]string{driver[0], driver[1], "driver.image.digest=" + digest}, "image: csi-example-driver@" + digest},
		"a number of nodes":       {with("failover.maxFailingNodes=2"), "--max-failing-nodes=2"},
		"a share of nodes":        {with("failover.maxFailingNodes=100%"), "--max-failing-nodes=100%"},
		"enforce":                 {with("failover.mode=enforce"), "--failover-mode=enforce"},
		"a duration of two units": {with("leaderElection.leaseDuration=1m5s", "leaderElection.renewDeadline=1m"), "duration=1m5s"},
		"one without an election": {with("replicas=1", "sidecar.extraArgs={--leader-election=false}"), "- --leader-election=false"},
		"the environment":         {with(`sidecar.env=[{"name":"OTEL_EXPORTER_OTLP_ENDPOINT","value":"http://otel:4317"}]`), "value: http://otel:4317"},
		"per node, no election":   {perNode("sidecar.extraArgs={--leader-election=false}"), "- --leader-election=false"},
		"per node, all but some":  {perNode("sidecar.controllers={*,-attacher}"), "- --node-deployment\n"},
		"per node, with its set":  {perNode("provisioner.capacity=true", "provisioner.capacityOwnerLevel=1"), "- --capacity-ownerref-level=1\n"},
		"per node, with its Pod":  {perNode("provisioner.capacity=true"), "- --capacity-ownerref-level=0\n"},
		"with its Deployment":     {with("provisioner.capacity=true"), "- --capacity-ownerref-level=2\n"},
		"with its Pod":            {with("provisioner.capacity=true", "provisioner.capacityOwnerLevel=0"), "- --capacity-ownerref-level=0\n"},
		"a container more":        {with(`extraContainers=[{"name":"registrar","image":"registrar:v1"}]`), "image: registrar:v1"},
		"a share of nodes anew":   {perNode("provisioner.nodeDeployment.maxUnavailable=10%"), "maxUnavailable: 10%\n"},
		"a socket elsewhere":      {perNode("provisioner.nodeDeployment.socketDir=/srv/csi"), "path: /srv/csi\n"},
		"nothing is attached":     {with("driver.createCSIDriver=true", "driver.attachRequired=false"), "attachRequired: false\n"},
		"capitals in the name":    {append([]string{"driver.name=CSI.example.com"}, driver[1:]...), "- external-attacher-leader-csi-example-com"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := template(t, path(t), c.values...)
			if err != nil || !strings.Contains(out, c.want) {
				t.Errorf("%v; %q is not in\n%s", err, c.want, out)
			}
		})
	}
}

// parentChart is a chart with this one as a subchart, some values for that, and a
// pod of its own that takes its container and the ServiceAccount's name from it.
func parentChart(t *testing.T, values string) (dir string) {
	t.Helper()
	parent := t.TempDir()
	for name, content := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: my-driver\nversion: 0.0.1\nappVersion: v9\ndependencies: [{name: ha-sidecar, version: \">=0.1.0\"}]\n",
		"values.yaml": "ha-sidecar:\n  deployment: {create: false}\n  driver: {name: csi.example.com}\n" + values,
		"templates/controller.yaml": `kind: Pod
spec:
  serviceAccountName: {{ include "ha-sidecar.serviceAccountName" . }}
  containers:
    -
      {{- include "ha-sidecar.container" . | nindent 6 }}
`,
	} {
		file := filepath.Join(parent, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(parent, "charts", "ha-sidecar"), os.DirFS(path(t))); err != nil {
		t.Fatal(err)
	}
	return parent
}

// A chart with a controller pod of its own takes the container, the
// ServiceAccount's name and the roles from this one.
func TestASubchartGivesItsContainer(t *testing.T) {
	parent := parentChart(t, "")
	out, err := template(t, parent)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{
		"image: ha-sidecar:0.1.0\n", "serviceAccountName: csi-ha-sidecar\n", "path: /readyz", "kind: ServiceAccount\n",
		"name: csi-ha-sidecar-hacontroller\n", "- --failover-mode=observe\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, not := range []string{"kind: Deployment", "kind: PodDisruptionBudget"} {
		if strings.Contains(out, not) {
			t.Errorf("there is a %s", not)
		}
	}
	if out, err := template(t, parent, "ha-sidecar.failover.mode=enforce", "ha-sidecar.sidecar.controllers={attacher}"); err == nil {
		t.Errorf("bad values were rendered: %s", out)
	}
}
