package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// perNode are values for a provisioner on each node.
func perNode(values ...string) []string {
	return with(append([]string{"provisioner.nodeDeployment.enabled=true"}, values...)...)
}

// render gives the objects of a chart.
func render(t *testing.T, chart string, values ...string) (objects []*unstructured.Unstructured) {
	t.Helper()
	out, err := template(t, chart, values...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(out)), 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := decoder.Decode(&obj.Object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if len(obj.Object) > 0 {
			objects = append(objects, obj)
		}
	}
}

func kinds(objects []*unstructured.Unstructured) (names []string) {
	for _, obj := range objects {
		names = append(names, obj.GetKind()+" "+obj.GetName())
	}
	slices.Sort(names)
	return names
}

// read takes the only object of a kind into what it is.
func read(t *testing.T, objects []*unstructured.Unstructured, kind string, into any) {
	t.Helper()
	found := slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return o.GetKind() != kind })
	if len(found) != 1 {
		t.Fatalf("there are %d of kind %s: %v", len(found), kind, kinds(objects))
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found[0].Object, into); err != nil {
		t.Fatal(err)
	}
}

func container(t *testing.T, pod v1.PodSpec, name string) v1.Container {
	t.Helper()
	at := slices.IndexFunc(pod.Containers, func(c v1.Container) bool { return c.Name == name })
	if at < 0 {
		t.Fatalf("there is no container %s", name)
	}
	return pod.Containers[at]
}

// The DaemonSet takes the place of all that a Deployment has.
func TestADaemonSetInThePlaceOfTheDeployment(t *testing.T) {
	objects := render(t, path(t), perNode("replicas=3", "provisioner.capacity=true", "driver.createCSIDriver=true")...)
	want := []string{
		"CSIDriver csi.example.com",
		"ClusterRole csi-ha-sidecar-core", "ClusterRole csi-ha-sidecar-provisioner",
		"ClusterRoleBinding csi-ha-sidecar-core", "ClusterRoleBinding csi-ha-sidecar-provisioner",
		"DaemonSet csi-ha-sidecar", "Role csi-ha-sidecar-capacity", "Role csi-ha-sidecar-journal",
		"RoleBinding csi-ha-sidecar-capacity", "RoleBinding csi-ha-sidecar-journal", "ServiceAccount csi-ha-sidecar",
	}
	if diff := cmp.Diff(want, kinds(objects)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	var set appsv1.DaemonSet
	read(t, objects, "DaemonSet", &set)
	if s := set.Spec.UpdateStrategy; s.Type != appsv1.RollingUpdateDaemonSetStrategyType || s.RollingUpdate.MaxSurge.String() != "0" || s.RollingUpdate.MaxUnavailable.String() != "1" {
		t.Errorf("the strategy is %+v: two of one node would take socket and journal from each other", s)
	}
	pod := set.Spec.Template.Spec
	if len(pod.TopologySpreadConstraints) > 0 || *pod.SecurityContext.RunAsUser != 0 || pod.ServiceAccountName != "csi-ha-sidecar" {
		t.Errorf("the Pod is %+v", pod)
	}
	socket := v1.HostPathDirectoryOrCreate
	if diff := cmp.Diff(&v1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins/csi.example.com", Type: &socket}, pod.Volumes[0].HostPath); diff != "" {
		t.Errorf("the directory of the socket, which the kubelet has to find (-want +got):\n%s", diff)
	}
}

// Each container knows its node, and what is elected, moved or fenced is not told
// of.
func TestWhatAProvisionerOfANodeIsTold(t *testing.T) {
	var set appsv1.DaemonSet
	read(t, render(t, path(t), perNode("provisioner.strictTopology=true")...), "DaemonSet", &set)
	for name, fields := range map[string]map[string]string{
		"driver":     {"NODE_NAME": "spec.nodeName"},
		"ha-sidecar": {"NODE_NAME": "spec.nodeName", "POD_NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"},
	} {
		got := map[string]string{}
		for _, e := range container(t, set.Spec.Template.Spec, name).Env {
			if e.ValueFrom != nil {
				got[e.Name] = e.ValueFrom.FieldRef.FieldPath
			}
		}
		if diff := cmp.Diff(fields, got); diff != "" {
			t.Errorf("environment of %s (-want +got):\n%s", name, diff)
		}
	}
	want := []string{
		"--csi-address=/run/csi/socket", "--controllers=*", "--timeout=15s", "--worker-threads=10", "--provisioner-worker-threads=100",
		"--extra-create-metadata=false", "--http-endpoint=:8080",
		"--node-deployment", "--node-deployment-immediate-binding=true", "--node-deployment-base-delay=20s", "--node-deployment-max-delay=60s", "--v=2",
	}
	if diff := cmp.Diff(want, container(t, set.Spec.Template.Spec, "ha-sidecar").Args); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}

// A token of this account is on each node: it may do what provisioning takes, and
// nothing else.
func TestWhatAProvisionerOfANodeMayDo(t *testing.T) {
	core := []string{
		"events: create patch",
		"persistentvolumeclaims: get list watch patch update", "persistentvolumes: create delete patch", "persistentvolumes: get list watch",
		"storageclasses.storage.k8s.io: get list watch", "volumeattachments.storage.k8s.io: get list watch",
		"volumeattributesclasses.storage.k8s.io: get",
		"volumesnapshotcontents.snapshot.storage.k8s.io: get", "volumesnapshots.snapshot.storage.k8s.io: get list update",
	}
	journal := "configmaps in csi-example: get list create update"
	capacity := "csistoragecapacities.storage.k8s.io in csi-example: get list watch create update patch delete"
	for name, c := range map[string]struct {
		values []string
		more   []string
	}{
		"without capacity":       {nil, []string{journal}},
		"capacity":               {[]string{"provisioner.capacity=true"}, []string{journal, capacity, "pods in csi-example: get"}},
		"capacity of the set":    {[]string{"provisioner.capacity=true", "provisioner.capacityOwnerLevel=1"}, []string{journal, capacity, "pods in csi-example: get"}},
		"capacity without owner": {[]string{"provisioner.capacity=true", "provisioner.capacityOwnerLevel=-1"}, []string{journal, capacity}},
		"secrets":                {[]string{"rbac.secretNamespaces={keys}"}, []string{journal, "secrets in keys: get"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := append(slices.Clone(core), c.more...)
			slices.Sort(want)
			if diff := cmp.Diff(want, granted(t, render(t, path(t), perNode(c.values...)...))); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		})
	}
}

// granted are the rules of all roles, by resource.
func granted(t *testing.T, objects []*unstructured.Unstructured) (rules []string) {
	t.Helper()
	for _, obj := range objects {
		if obj.GetKind() != "Role" && obj.GetKind() != "ClusterRole" {
			continue
		}
		var role rbacv1.Role // a ClusterRole has the same rules
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &role); err != nil {
			t.Fatal(err)
		}
		where := ""
		if obj.GetKind() == "Role" {
			where = " in " + role.Namespace
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				if group := rule.APIGroups[0]; group != "" {
					resource += "." + group
				}
				rules = append(rules, fmt.Sprintf("%s%s: %s", resource, where, strings.Join(rule.Verbs, " ")))
			}
		}
	}
	slices.Sort(rules)
	return rules
}

// A driver's own DaemonSet takes the container, and the roles of a provisioner.
func TestASubchartGivesItsContainerToADaemonSet(t *testing.T) {
	parent := parentChart(t, "  provisioner: {capacity: true, nodeDeployment: {enabled: true}}\n")
	objects := render(t, parent)
	var pod v1.Pod
	read(t, objects, "Pod", &pod)
	sidecar := container(t, pod.Spec, "ha-sidecar")
	for _, want := range []string{"--node-deployment", "--capacity-ownerref-level=0"} {
		if !slices.Contains(sidecar.Args, want) {
			t.Errorf("%s is missing: %v", want, sidecar.Args)
		}
	}
	if sidecar.Env[0].Name != "NODE_NAME" || pod.Spec.ServiceAccountName != "csi-ha-sidecar" {
		t.Errorf("the Pod is %+v", pod.Spec)
	}
	for _, name := range kinds(objects) {
		if strings.HasPrefix(name, "DaemonSet ") || strings.HasSuffix(name, "-leases") {
			t.Errorf("there is a %s", name)
		}
	}
	if out, err := template(t, parent, "ha-sidecar.sidecar.controllers={attacher}"); err == nil {
		t.Errorf("bad values were rendered: %s", out)
	}
}
