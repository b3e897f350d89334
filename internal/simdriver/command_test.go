package simdriver

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// run runs the command line in this process.
func run(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = Main(t.Context(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestBadInput: one line says what is wrong; 2 is for usage, 1 for the rest.
func TestBadInput(t *testing.T) {
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file, socket := filepath.Join(dir, "file"), filepath.Join(dir, "socket")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	good := "unix://" + filepath.Join(dir, "new")
	state := filepath.Join(dir, "state")
	for _, test := range []struct {
		want string
		code int
		args []string
	}{
		{"say what to run", 2, nil},
		{"unknown command", 2, []string{"serve"}},
		{"unknown flag", 2, []string{"controller", "--bogus"}},
		{"unknown flag", 2, []string{"controller", "--node-id", "n"}},
		{"unknown command", 2, []string{"controller", "extra"}},
		{"--state-dir is missing", 2, []string{"controller", "--endpoint", good}},
		{"unix:///path", 2, []string{"controller", "--state-dir", state}},
		{"unix:///path", 2, []string{"controller", "--state-dir", state, "--endpoint", "tcp://127.0.0.1:1"}},
		{"no absolute path", 2, []string{"controller", "--state-dir", state, "--endpoint", "unix://x.sock"}},
		{"no absolute path", 2, []string{"controller", "--state-dir", state, "--endpoint", "unix:///dir/"}},
		{"longer than", 2, []string{"controller", "--state-dir", state, "--endpoint", "unix:///" + strings.Repeat("x", 120)}},
		{"--control", 2, []string{"controller", "--state-dir", state, "--endpoint", good, "--control", "nonsense"}},
		{"are the same", 2, []string{"controller", "--state-dir", state, "--endpoint", good, "--control", good}},
		{"--health", 2, []string{"controller", "--state-dir", state, "--endpoint", good, "--health", "v9"}},
		{"--name", 2, []string{"controller", "--state-dir", state, "--endpoint", good, "--name", "a b"}},
		{"--node-id", 2, []string{"node", "--state-dir", state, "--endpoint", good}},
		{"--node-id", 2, []string{"node", "--state-dir", state, "--endpoint", good, "--node-id", "../x"}},
		{"--topology", 2, []string{"node", "--state-dir", state, "--endpoint", good, "--node-id", "n", "--topology", "zone="}},
		{"needs --topology", 2, []string{"node", "--state-dir", state, "--endpoint", good, "--node-id", "n", "--controller"}},
		{"need --controller", 2, []string{"node", "--state-dir", state, "--endpoint", good, "--node-id", "n", "--capacity", "5"}},
		{"invalid argument", 2, []string{"node", "--state-dir", state, "--endpoint", good, "--node-id", "n", "--topology", "zone"}},
		{"--capacity", 2, []string{"controller", "--state-dir", state, "--endpoint", good, "--capacity", "-1"}},
		{"is no socket", 1, []string{"controller", "--state-dir", state, "--endpoint", "unix://" + file}},
		{"is no socket", 1, []string{"controller", "--state-dir", state, "--endpoint", good, "--control", "unix://" + file}},
		{"served by another process", 1, []string{"controller", "--state-dir", state, "--endpoint", "unix://" + socket}},
		{"not a directory", 1, []string{"controller", "--state-dir", file + "/x", "--endpoint", good}},
		{"say what to do", 2, []string{"ctl"}},
		{"either --control or --state-dir", 2, []string{"ctl", "ledger"}},
		{"either --control or --state-dir", 2, []string{"ctl", "ledger", "--control", good, "--state-dir", state}},
		{"accepts 2 arg", 2, []string{"ctl", "fail-path", "vol-a", "--state-dir", state}},
		{"no such file", 1, []string{"ctl", "ledger", "--state-dir", filepath.Join(dir, "typo")}},
		{"no such file", 1, []string{"ctl", "ledger", "--control", good}},
		{"not found", 1, []string{"ctl", "fail-path", "vol-a", "n", "--state-dir", state}},
		{"--control", 1, []string{"ctl", "faults", "--state-dir", state}},
		{"gRPC code", 2, []string{"ctl", "inject", "Probe", "--code", "NOPE", "--control", good}},
		{"nothing would happen", 2, []string{"ctl", "inject", "Probe", "--control", good}},
		{"no duration", 2, []string{"ctl", "drop-socket", "soon", "--control", good}},
		{"no number of bytes", 2, []string{"ctl", "set-capacity", "much", "--control", good}},
		{"no number of bytes", 2, []string{"ctl", "set-capacity", "--control", good, "--", "-1"}},
		{"--max-volume-size", 2, []string{"ctl", "set-capacity", "1", "--max-volume-size", "-1", "--control", good}},
		{"is none of", 2, []string{"ctl", "misbehave", "--create", "larger", "--control", good}},
		{"--control", 1, []string{"ctl", "misbehave", "--create", "smaller", "--state-dir", state}},
		{"--control", 1, []string{"ctl", "counts", "--state-dir", state}},
		{"--control", 1, []string{"ctl", "calls", "--state-dir", state}},
		{"give --volume", 2, []string{"ctl", "health", "--state-dir", state}},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			code, out, errOut := run(t, test.args...)
			if code != test.code || !strings.Contains(errOut, test.want) {
				t.Errorf("exit code %d with %q, want %d with %q", code, errOut, test.code, test.want)
			}
			if strings.Count(errOut, "\n") != 1 || out != "" {
				t.Errorf("not one line: %q%q", out, errOut)
			}
		})
	}
}

// TestCtl uses every command of ctl against a process and a directory.
func TestCtl(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	for name, where := range map[string][]string{
		"control":   {"--control", "unix://" + filepath.Join(r.run, "c.ctl")},
		"state-dir": {"--state-dir", filepath.Join(r.dir, "state")},
	} {
		t.Run(name, func(t *testing.T) {
			ctl := func(want string, args ...string) {
				t.Helper()
				code, out, errOut := run(t, append(append([]string{"ctl"}, args...), where...)...)
				if code != 0 || !strings.Contains(out, want) {
					t.Errorf("%v: exit code %d, %q, %q; want %q", args, code, out, errOut, want)
				}
			}
			volume := "vol-" + name
			ctl(volume, "create-volume", name, "--capacity", "1048576")
			r.must(r.publish(volume, node.id))
			ctl(`"volume": "`+volume+`"`, "publications")
			ctl("", "fail-path", volume, node.id)
			ctl(`"path-fail"`, "ledger")
			ctl("", "heal-path", volume, node.id)
			ctl("", "health", "inaccessible:ArrayDown:The array is down", "--volume", volume)
			ctl("", "health", "degraded", "--node", node.id)
			ctl("", "health", "--volume", volume)
			ctl(`"fencing": true`, "info")
			ctl(`"name": "`+name+`"`, "volumes")
			ctl("[]", "snapshots")
			ctl("[]", "capacity")
			ctl("", "set-capacity", "4096", "--segments", "zone=a", "--max-volume-size", "2048")
			ctl(`"maximumVolumeSize": 2048`, "capacity")
			ctl("", "set-capacity", "none", "--segments", "zone=a")
			ctl("[]", "capacity")
			if name != "control" {
				return
			}
			ctl("1", "inject", "Probe", "--code", "UNAVAILABLE", "--delay", "1ms", "--times", "1", "--effect")
			ctl(`"method": "Probe"`, "faults")
			ctl("", "misbehave", "--create", "smaller", "--name", "v")
			ctl("", "misbehave")
			ctl(`"ControllerPublishVolume": `, "counts")
			ctl(`"volume": "`+volume+`"`, "calls", "--method", "ControllerPublishVolume")
			ctl("", "release", "1")
			ctl("", "clear")
			ctl("[]", "faults")
			ctl("", "drop-socket", "1ms")
			_, err := r.ListVolumes(t.Context(), &csi.ListVolumesRequest{}, grpc.WaitForReady(true))
			r.must(err)
		})
	}
}
