package csiclient

import (
	"strings"
	"testing"
	"time"
)

func TestSocketPath(t *testing.T) {
	for _, tc := range []struct{ address, want, wantErr string }{
		{address: "/csi/csi.sock", want: "/csi/csi.sock"},
		{address: "/csi/a:b.sock", want: "/csi/a:b.sock"},
		{address: "unix:///csi/csi.sock", want: "/csi/csi.sock"},
		{address: "unix:/csi/csi.sock", want: "/csi/csi.sock"},
		{address: "", wantErr: "no address given"},
		{address: "csi.sock", wantErr: "not absolute"},
		{address: "unix:csi.sock", wantErr: "not absolute"},
		{address: "unix://host/csi.sock", wantErr: "not supported"},
		{address: "tcp://127.0.0.1:1234", wantErr: "not supported"},
		{address: "unix://%zz", wantErr: "reading address"},
		{address: "/" + strings.Repeat("x", 107), wantErr: "the kernel takes 107"},
	} {
		t.Run(tc.address, func(t *testing.T) {
			got, err := socketPath(tc.address)
			if got != tc.want || (err == nil) != (tc.wantErr == "") {
				t.Fatalf("socketPath = %q, %v, want %q, error %q", got, err, tc.want, tc.wantErr)
			}
			if err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("The error is %q, want it to contain %q", err, tc.wantErr)
			}
		})
	}
}

func TestNewRejectsBadConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"Timeout":           {Address: "/s", Timeout: -time.Second},
		"ConnectTimeout":    {Address: "/s", ConnectTimeout: -1},
		"ProbeInterval":     {Address: "/s", ProbeInterval: -1},
		"MaxReceiveBytes":   {Address: "/s", MaxReceiveBytes: -1},
		"HealthParallelism": {Address: "/s", HealthParallelism: -1},
		"ListEntries":       {Address: "/s", ListEntries: -1},
		"address":           {Address: "http://x"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New with a bad %s: error %v, want one that names it", name, err)
		}
	}
}

func TestNewRejectsMetricsTwice(t *testing.T) {
	r := registry()
	if _, err := New(Config{Address: "/s", Registry: r}); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Address: "/s", Registry: r}); err == nil {
		t.Error("A second client on one registry was accepted, want an error")
	}
}
