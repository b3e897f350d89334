package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

const fieldManager = "rig"

// chart is what the Helm chart renders.
type chart struct {
	objects []*unstructured.Unstructured
	// kind is that of the workload, Deployment or DaemonSet, name its name and
	// template its Pod.
	kind, name string
	template   v1.PodTemplateSpec
	// sidecar is the container ha-sidecar of the template.
	sidecar v1.Container
}

// workload reports whether the object runs Pods: the rig runs their programs
// itself.
func workload(obj *unstructured.Unstructured) bool {
	return obj.GetKind() == "Deployment" || obj.GetKind() == "DaemonSet"
}

// user is who the chart's ServiceAccount is to the API server.
func (c *chart) user() string {
	return "system:serviceaccount:" + SidecarNamespace + ":" + c.template.Spec.ServiceAccountName
}

// renderChart runs helm template for a release with values as for --set.
func renderChart(ctx context.Context, release string, values []string) (*chart, error) {
	helm, err := Program("helm")
	if err != nil {
		return nil, err
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	args := []string{"template", release, filepath.Join(root, "deploy", "kubernetes", "ha-sidecar"), "--namespace", SidecarNamespace}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	cmd := exec.CommandContext(ctx, helm, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return parseChart(out)
}

func parseChart(manifest []byte) (*chart, error) {
	c := &chart{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := decoder.Decode(&obj.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading what the chart renders: %w", err)
		}
		if len(obj.Object) == 0 {
			continue
		}
		c.objects = append(c.objects, obj)
		if workload(obj) {
			if err := c.takeWorkload(obj); err != nil {
				return nil, fmt.Errorf("reading the chart's %s: %w", obj.GetKind(), err)
			}
		}
	}
	if c.template.Spec.ServiceAccountName == "" || len(c.sidecar.Args) == 0 {
		return nil, errors.New("the chart renders no Deployment or DaemonSet with a container ha-sidecar")
	}
	return c, nil
}

func (c *chart) takeWorkload(obj *unstructured.Unstructured) error {
	if c.kind != "" {
		return fmt.Errorf("there is the %s %s, too", c.kind, c.name)
	}
	c.kind, c.name = obj.GetKind(), obj.GetName()
	template, _, err := unstructured.NestedMap(obj.Object, "spec", "template")
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &c.template); err != nil {
		return err
	}
	for _, container := range c.template.Spec.Containers {
		if container.Name == "ha-sidecar" {
			c.sidecar = container
		}
	}
	return nil
}

// applyCharts applies what the chart renders for each release.
func (r *Rig) applyCharts(ctx context.Context) (err error) {
	driver := []string{"driver.name=" + Driver, "driver.image.repository=simdriver", "driver.image.tag=dev"}
	if r.chart, err = renderChart(ctx, "sim", slices.Concat(driver, []string{"driver.createCSIDriver=true"}, r.cfg.Values)); err != nil {
		return err
	}
	namespace := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": SidecarNamespace},
	}}
	if err := r.apply(ctx, namespace, false); err != nil {
		return err
	}
	if err := r.applyChart(ctx, r.chart); err != nil || r.cfg.Beside == nil {
		return err
	}
	if r.beside, err = renderChart(ctx, "beside", slices.Concat(driver, r.cfg.Beside)); err != nil {
		return err
	}
	return r.applyChart(ctx, r.beside)
}

// applyChart applies objects. The server only checks the Deployment or DaemonSet:
// its containers run as processes here.
func (r *Rig) applyChart(ctx context.Context, c *chart) error {
	for _, obj := range c.objects {
		if err := r.apply(ctx, obj, workload(obj)); err != nil {
			return err
		}
	}
	return nil
}

// apply does a server-side apply of obj; dry checks it with the server only.
func (r *Rig) apply(ctx context.Context, obj *unstructured.Unstructured, dry bool) error {
	gvk := obj.GroupVersionKind()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(r.Client.Discovery()))
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return fmt.Errorf("finding the resource of %s: %w", gvk, err)
	}
	var resource dynamic.ResourceInterface = r.Dynamic.Resource(mapping.Resource)
	if ns := obj.GetNamespace(); ns != "" {
		resource = r.Dynamic.Resource(mapping.Resource).Namespace(ns)
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	if _, err := resource.Apply(ctx, obj.GetName(), obj, options); err != nil {
		return fmt.Errorf("applying %s %s: %w", gvk.Kind, obj.GetName(), err)
	}
	return nil
}
