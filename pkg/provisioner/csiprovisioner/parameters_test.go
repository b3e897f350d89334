package csiprovisioner

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

func TestParametersThatTheDriverGets(t *testing.T) {
	all := map[string]string{"fstype": "xfs", "csiProvisionerSecretName": "old", "plain": "1", "csi.storage.k8s.io": "no prefix"}
	stripped := map[string]string{parameterFSType: "ext4"}
	for _, k := range secretKinds {
		stripped[k.name], stripped[k.namespace] = "a", "b"
	}
	both := map[string]string{}
	for _, m := range []map[string]string{all, stripped} {
		for k, v := range m {
			both[k] = v
		}
	}
	for name, c := range map[string]struct {
		in, want map[string]string
		err      string
	}{
		"none":                             {nil, map[string]string{}, ""},
		"all others are kept":              {all, all, ""},
		"ours are stripped":                {stripped, map[string]string{}, ""},
		"mixed":                            {both, all, ""},
		"an unknown one of ours":           {map[string]string{"csi.storage.k8s.io/fstyp": "x"}, nil, `StorageClass "fast": parameter "csi.storage.k8s.io/fstyp" is not known`},
		"one of the extra metadata":        {map[string]string{parameterClaimName: "x"}, nil, parameterClaimName},
		"the prefix alone":                 {map[string]string{parameterPrefix: ""}, nil, `"csi.storage.k8s.io/" is not known`},
		"of several the first by alphabet": {map[string]string{parameterPrefix + "b": "", parameterPrefix + "a": "", parameterPrefix + "c": ""}, nil, `"csi.storage.k8s.io/a"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := driverParameters("fast", c.in)
			if c.err != "" {
				wantRefused(t, err, c.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// wantRefused wants an error that is told with its text and not tried again soon.
func wantRefused(t *testing.T, err error, text string) {
	t.Helper()
	var late provisioner.Infeasible
	if err == nil || !strings.Contains(err.Error(), text) || !errors.As(err, &late) || !late.Infeasible() {
		t.Fatalf("error %v, want an infeasible one with %q", err, text)
	}
}

func TestFilesystemOfAClass(t *testing.T) {
	for name, c := range map[string]struct {
		parameters map[string]string
		fallback   string
		want, err  string
	}{
		"the current parameter":    {map[string]string{parameterFSType: "xfs"}, "ext4", "xfs", ""},
		"the deprecated one":       {map[string]string{"fstype": "xfs"}, "ext4", "xfs", ""},
		"neither":                  {nil, "ext4", "ext4", ""},
		"neither and no default":   {nil, "", "", ""},
		"named, and empty":         {map[string]string{parameterFSType: ""}, "ext4", "", ""},
		"both":                     {map[string]string{parameterFSType: "xfs", "fstype": "xfs"}, "", "", `parameters "fstype" and "csi.storage.k8s.io/fstype" both name a filesystem`},
		"a name in another casing": {map[string]string{"fsType": "xfs"}, "ext4", "ext4", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fsType("fast", c.parameters, c.fallback)
			if c.err != "" {
				wantRefused(t, err, c.err)
			} else if err != nil || got != c.want {
				t.Errorf("%q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestExtraMetadataIsAddedWhereItIsAskedFor(t *testing.T) {
	parameters := map[string]string{"a": "b"}
	for _, on := range []bool{false, true} {
		w := newWorld(t, func(c *Config) { c.ExtraCreateMetadata = on })
		w.made(options(claim(), class(parameters)))
		want := map[string]string{"a": "b"}
		if on {
			want[parameterClaimName], want[parameterClaimNamespace], want[parameterVolumeName] = "data", "ns", "pvc-uid-1"
		}
		if diff := cmp.Diff(want, w.driver.created[0].Parameters); diff != "" {
			t.Errorf("with %v (-want +got):\n%s", on, diff)
		}
	}
	if len(parameters) != 1 {
		t.Errorf("the class was changed: %v", parameters)
	}
}
