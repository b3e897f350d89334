package cluster

import (
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestParseUp(t *testing.T) {
	o, err := ParseUp([]string{
		"--dir", "relative", "--kubeconfig=/tmp/k", "--feature-gates", "Other=false", "--audit-log=/tmp/a", "--fsync",
		"--arg", "etcd=--quota-backend-bytes=1", "--arg", "kube-apiserver=--a=b=c,d", "--arg", "kube-apiserver=--v=2",
		"--port", "6443", "--etcd-port", "2379",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("relative")
	if err != nil {
		t.Fatal(err)
	}
	want := Options{
		Dir: dir, Kubeconfig: "/tmp/k", FeatureGates: "Other=false,CSIVolumeHealth=true", AuditLog: "/tmp/a", Fsync: true,
		Args: map[string][]string{Etcd: {"--quota-backend-bytes=1"}, APIServer: {"--a=b=c,d", "--v=2"}},
		Port: 6443, EtcdPort: 2379,
	}
	if !reflect.DeepEqual(o, want) {
		t.Errorf("got  %+v\nwant %+v", o, want)
	}
}

// Every complaint is one line, is a usage error and says what to do.
func TestParseUpComplains(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no directory":      {nil, "--dir is missing: name a directory"},
		"unknown flag":      {[]string{"--dirr=x"}, "localcluster up --help lists the flags"},
		"stray argument":    {[]string{"--dir=x", "y"}, `"y" is one argument too many`},
		"unknown component": {[]string{"--dir=x", "--arg=kubelet=--v=1"}, "COMPONENT is one of etcd, kube-apiserver, kube-controller-manager, kube-scheduler"},
		"no component":      {[]string{"--dir=x", "--arg=--v=1"}, "names no component"},
		"no flag":           {[]string{"--dir=x", "--arg=etcd=v"}, "write etcd=--flag=value"},
		"gate without a value": {
			[]string{"--dir=x", "--feature-gates=A=true,B"}, `holds "B": write NAME=true or NAME=false`,
		},
		"port out of range": {[]string{"--dir=x", "--port=70000"}, "is no port: use 1 to 65535"},
		"port twice":        {[]string{"--dir=x", "--port=7000", "--etcd-port=7000"}, "use two ports"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseUp(test.args, io.Discard)
			checkUsage(t, err, test.want)
		})
	}
}

func TestParseKubeconfig(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want KubeconfigOptions
	}{
		"node": {[]string{"--dir=/d", "--node=n1"}, KubeconfigOptions{"/d", "system:node:n1", []string{"system:nodes"}}},
		"user": {[]string{"--dir=/d", "--user=u"}, KubeconfigOptions{"/d", "u", nil}},
		"user in groups": {
			[]string{"--dir=/d", "--user=u", "--group=a", "--group=b"}, KubeconfigOptions{"/d", "u", []string{"a", "b"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseKubeconfig(test.args, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Groups) == 0 {
				got.Groups = nil
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestParseKubeconfigComplains(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no directory":    {[]string{"--node=n"}, "--dir is missing"},
		"nobody":          {[]string{"--dir=x"}, "either --node NAME or --user NAME"},
		"both":            {[]string{"--dir=x", "--node=n", "--user=u"}, "either --node NAME or --user NAME"},
		"node in a group": {[]string{"--dir=x", "--node=n", "--group=g"}, "--group goes with --user only"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseKubeconfig(test.args, io.Discard)
			checkUsage(t, err, test.want)
		})
	}
}

func checkUsage(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.As(err, new(UsageError)) {
		t.Fatalf("got %v, want a usage error", err)
	}
	if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q, want one line with %q", err, want)
	}
}

func TestHelp(t *testing.T) {
	var out strings.Builder
	if _, err := ParseUp([]string{"--help"}, &out); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("got %v, want %v", err, pflag.ErrHelp)
	}
	if !strings.Contains(out.String(), "--audit-log") {
		t.Errorf("the help does not list the flags:\n%s", out.String())
	}
}

func TestFeatureGates(t *testing.T) {
	for given, want := range map[string]string{
		"":                           "CSIVolumeHealth=true",
		"A=true":                     "A=true,CSIVolumeHealth=true",
		"CSIVolumeHealth=false":      "CSIVolumeHealth=false",
		"kube:CSIVolumeHealth=false": "kube:CSIVolumeHealth=false",
		"AllAlpha=true, A=false,":    "AllAlpha=true,A=false,CSIVolumeHealth=true",
	} {
		if got, err := featureGates(given); err != nil || got != want {
			t.Errorf("featureGates(%q) = %q, %v; want %q", given, got, err, want)
		}
	}
}
