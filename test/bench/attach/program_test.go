package main

import "testing"

func TestCountCalls(t *testing.T) {
	const metrics = `# TYPE csi_sidecar_operations_seconds histogram
csi_sidecar_operations_seconds_bucket{driver_name="d",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerPublishVolume",le="+Inf"} 77
csi_sidecar_operations_seconds_count{driver_name="d",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerPublishVolume"} 498
csi_sidecar_operations_seconds_count{driver_name="d",grpc_status_code="Internal",method_name="/csi.v1.Controller/ControllerPublishVolume"} 2
csi_sidecar_operations_seconds_count{driver_name="d",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerUnpublishVolume"} 1e+03
other_total 5
`
	for method, want := range map[string]int{publish: 500, unpublish: 1000, "/csi.v1.Controller/ListVolumes": 0} {
		if got, err := countCalls(metrics, method); got != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", method, got, err, want)
		}
	}
	if _, err := countCalls(`csi_sidecar_operations_seconds_count{method_name="`+publish+`"} many`, publish); err == nil {
		t.Error("a value that is no number is taken")
	}
}
