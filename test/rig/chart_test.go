package rig

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// acceptsExamples has the server check what is rendered from the chart's examples.
func acceptsExamples(ctx context.Context, t *testing.T, w *Rig) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "csi-example"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for file, kind := range map[string]string{"ha-sidecar.yaml": "Deployment", "ha-sidecar-node.yaml": "DaemonSet"} {
		manifest, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", file))
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseChart(manifest)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if c.kind != kind {
			t.Errorf("%s has a %s, want a %s", file, c.kind, kind)
		}
		for _, obj := range c.objects {
			if err := w.apply(ctx, obj, true); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

const daemonSet = `kind: DaemonSet
metadata: {name: set}
spec:
  template:
    spec:
      serviceAccountName: account
      containers:
        - {name: driver, args: [a]}
        - name: ha-sidecar
          args: [b]
          env:
            - {name: PLAIN, value: x}
            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
`

func TestParseChart(t *testing.T) {
	c, err := parseChart([]byte("kind: ConfigMap\n---\n" + daemonSet))
	if err != nil || c.kind != "DaemonSet" || c.name != "set" || len(c.objects) != 2 || !slices.Equal(c.sidecar.Args, []string{"b"}) {
		t.Errorf("parseChart() = %+v, %v", c, err)
	}
	for name, manifest := range map[string]string{
		"nothing runs":  "kind: ConfigMap\n",
		"no account":    strings.Replace(daemonSet, "serviceAccountName", "nodeName", 1),
		"no ha-sidecar": strings.Replace(daemonSet, "name: ha-sidecar", "name: other", 1),
		"two workloads": daemonSet + "---\n" + strings.Replace(daemonSet, "DaemonSet", "Deployment", 1),
	} {
		if c, err := parseChart([]byte(manifest)); err == nil {
			t.Errorf("%s: it was taken: %+v", name, c)
		}
	}
}

func TestEnvironmentOfANodePod(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "set-n", Namespace: "ns"}}
	c, err := parseChart([]byte(daemonSet))
	if err != nil {
		t.Fatal(err)
	}
	env, err := c.environment(pod, "n")
	if want := []string{"PLAIN=x", "NODE_NAME=n", "POD_NAME=set-n"}; err != nil || !slices.Equal(env, want) {
		t.Errorf("environment() = %v, %v; want %v", env, err, want)
	}
	if c, err = parseChart([]byte(strings.Replace(daemonSet, "spec.nodeName", "status.hostIP", 1))); err != nil {
		t.Fatal(err)
	}
	if env, err := c.environment(pod, "n"); err == nil || !strings.Contains(err.Error(), "NODE_NAME") {
		t.Errorf("environment() = %v, %v; want a word on what is not known", env, err)
	}
}
