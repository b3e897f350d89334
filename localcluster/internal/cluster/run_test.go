package cluster

import (
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParseRun(t *testing.T) {
	o, err := ParseRun([]string{Scheduler, "--dir=/d", "--arg=--v=3", "--feature-gates=A=true"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.Component != Scheduler || o.Dir != "/d" || !slices.Equal(o.Args, []string{"--v=3"}) || o.FeatureGates != "A=true,CSIVolumeHealth=true" {
		t.Errorf("got %+v", o)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no component":    {[]string{"--dir=/d"}, "cannot be run by itself"},
		"not a client":    {[]string{Etcd, "--dir=/d"}, `"etcd" cannot be run by itself`},
		"no directory":    {[]string{Scheduler}, "--dir is missing"},
		"no flag":         {[]string{Scheduler, "--dir=/d", "--arg=v"}, "write --arg=--flag=value"},
		"two components":  {[]string{Scheduler, ControllerManager, "--dir=/d"}, "is one argument too many"},
		"gate of nothing": {[]string{Scheduler, "--dir=/d", "--feature-gates=A"}, "write NAME=true"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRun(test.args, io.Discard)
			checkUsage(t, err, test.want)
		})
	}
}

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	o := RunOptions{Component: ControllerManager, Dir: dir, FeatureGates: "G=true", Args: []string{"--v=7"}}
	if _, _, err := CommandLine(o); err == nil || !strings.Contains(err.Error(), "holds no cluster") {
		t.Errorf("without a cluster: %v", err)
	}
	if err := os.WriteFile(layout(dir).kubeconfig(ControllerManager), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	line, release, err := CommandLine(o)
	if err != nil {
		t.Fatal(err)
	}
	if line[0] != ControllerManager || line[len(line)-1] != "--v=7" || !slices.Contains(line, "--leader-elect=false") || !slices.Contains(line, "--feature-gates=G=true") {
		t.Errorf("the command line is %q", line)
	}
	port := ""
	for _, arg := range line {
		if value, found := strings.CutPrefix(arg, "--secure-port="); found {
			port = value
		}
	}
	if listener, err := net.Listen("tcp", net.JoinHostPort(loopback, port)); err == nil {
		_ = listener.Close()
		t.Errorf("port %q is not held", port)
	}
	release()
}

func TestWithout(t *testing.T) {
	get := func(string) probe { return nil }
	for name, c := range map[string]struct {
		without []string
		want    string
	}{
		"all":                        {nil, "etcd kube-apiserver kube-controller-manager kube-scheduler; 5"},
		"without controller-manager": {[]string{ControllerManager}, "etcd kube-apiserver kube-scheduler; 3"},
		"without both":               {[]string{ControllerManager, Scheduler}, "etcd kube-apiserver; 2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &supervisor{options: Options{Without: c.without}, ports: ports{}}
			var run []string
			steps := s.steps(get)
			for _, step := range steps {
				run = append(run, step.run...)
			}
			if got := strings.Join(run, " ") + "; " + string(rune('0'+len(steps))); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	_, err := ParseUp([]string{"--dir=x", "--without=etcd"}, io.Discard)
	checkUsage(t, err, "name kube-controller-manager or kube-scheduler")
}
