package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/component-base/metrics"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// TestCallsTellMigrated as those of external-provisioner do: for a driver that took
// an in-tree plugin's place, and for no other.
func TestCallsTellMigrated(t *testing.T) {
	const create, name = "/csi.v1.Controller/CreateVolume", "/csi.v1.Identity/GetPluginInfo"
	count := func(driver, method, more string) string {
		return `csi_sidecar_operations_seconds_count{driver_name="` + driver + `",grpc_status_code="OK",method_name="` + method + `"` + more + "} 1\n"
	}
	for driver, want := range map[string][]string{
		csiclienttest.Name: {count(csiclienttest.Name, create, ""), count("unknown-driver", name, "")},
		"ebs.csi.aws.com":  {count("ebs.csi.aws.com", create, `,migrated="true"`)},
	} {
		t.Run(driver, func(t *testing.T) {
			d := csiclienttest.Start(t, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
			d.Handle("GetPluginInfo", func(context.Context, any) (any, error) { return &csi.GetPluginInfoResponse{Name: driver}, nil })
			d.Handle("CreateVolume", func(context.Context, any) (any, error) { return &csi.CreateVolumeResponse{}, nil })
			p := &process{registry: metrics.NewKubeRegistry(), calls: newCallMetrics()}
			client, err := csiclient.New(csiclient.Config{Address: d.Path, Metrics: p.calls})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			if err := client.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.calls.SetDriverName(client.Name())
			if _, err := client.CreateVolume(volume.WithMigrated(t.Context(), true), &csi.CreateVolumeRequest{}); err != nil {
				t.Fatal(err)
			}
			page := httptest.NewRecorder()
			p.metrics(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
			body := page.Body.String()
			for _, line := range want {
				if !strings.Contains(body, line) {
					t.Errorf("the page lacks %q:\n%s", line, body)
				}
			}
			if strings.Contains(body, "migrated=") != (driver == "ebs.csi.aws.com") {
				t.Errorf("the label migrated is of other drivers:\n%s", body)
			}
			if n := strings.Count(body, "# TYPE csi_sidecar_operations_seconds "); n != 1 {
				t.Errorf("the metric is there %d times", n)
			}
		})
	}
}
