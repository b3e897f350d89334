package testcluster

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a control plane and makes sure that the test leaves none behind.
func start(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	began := time.Now()
	c, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began))
	t.Cleanup(func() { _ = c.Stop() })
	return c
}

// processesOf lists the processes that have dir in their command line.
func processesOf(t *testing.T, dir string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		// A process that ends meanwhile is none that is left.
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(dir)) {
			found = append(found, file+": "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// One control plane serves all of this, since it is started for real.
func TestCluster(t *testing.T) {
	audit := filepath.Join(t.TempDir(), "audit.log")
	c := start(t, Config{AuditLog: audit, Args: []string{"kube-scheduler=--v=1"}, Log: t.Output()})
	if got := len(processesOf(t, c.Dir())); got != 5 {
		t.Errorf("%d processes run, want localcluster and 4 components", got)
	}
	version, err := c.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version.GitVersion, "v1.37.") {
		t.Errorf("the server's version is %s", version.GitVersion)
	}
	t.Run("service account", func(t *testing.T) { testServiceAccount(t, c) })
	t.Run("node", func(t *testing.T) { testNode(t, c) })

	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if left := processesOf(t, c.Dir()); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
	if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) {
		t.Errorf("the directory is left behind: %v", err)
	}
	if err := c.Err(); err != nil {
		t.Errorf("a stop that was asked for is reported: %v", err)
	}
	log, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"username":"system:serviceaccount:limited:worker"`, `"verb":"create"`, `"code":403`} {
		if !bytes.Contains(log, []byte(want)) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
}

// testServiceAccount creates a pod by a token that may do that in one namespace,
// and nothing else.
func testServiceAccount(t *testing.T, c *Cluster) {
	ctx := t.Context()
	const namespace, name = "limited", "worker"
	admin := c.Client()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	_, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}}}}
	if _, err := admin.RbacV1().Roles(namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path, err := c.ServiceAccountKubeconfig(ctx, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	limited := clientFrom(t, path)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
		Spec:       corev1.PodSpec{ServiceAccountName: name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	// The authorizer learns of the binding through a watch.
	eventually(t, "create a pod", func() error {
		_, err := limited.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	if _, err := limited.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing pods: %v, want it forbidden", err)
	}
	if _, err := limited.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("creating a pod in another namespace: %v, want it forbidden", err)
	}
}

// testNode registers a node by its own credentials, which are for no other node.
func testNode(t *testing.T, c *Cluster) {
	ctx := t.Context()
	path, err := c.NodeKubeconfig(ctx, "n1")
	if err != nil {
		t.Fatal(err)
	}
	nodes := clientFrom(t, path).CoreV1().Nodes()
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	if _, err := nodes.Create(ctx, node("n1"), metav1.CreateOptions{}); err != nil {
		t.Errorf("registering itself: %v", err)
	}
	if _, err := nodes.Create(ctx, node("n2"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("registering another node: %v, want it forbidden", err)
	}
}

func clientFrom(t *testing.T, path string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(100 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// A component that dies ends the control plane, and Err says which and why.
func TestComponentDies(t *testing.T) {
	c := start(t, Config{Dir: t.TempDir()})
	for _, found := range processesOf(t, c.Dir()) {
		if strings.Contains(found, " kube-scheduler ") {
			kill(t, strings.Split(found, "/")[2])
		}
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("the control plane outlives its scheduler")
	}
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "kube-scheduler ended by itself") {
		t.Errorf("got %v", err)
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	if left := processesOf(t, c.Dir()); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
}

// A component that was left out is run, ended and run again, and the control
// plane goes on.
func TestComponentApart(t *testing.T) {
	const component = "kube-controller-manager"
	c := start(t, Config{Dir: t.TempDir(), Without: []string{component}, Log: t.Output()})
	for _, namespace := range []string{"first", "second"} {
		_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		accounts := c.Client().CoreV1().ServiceAccounts(namespace)
		if _, err := accounts.Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("somebody made the service account: %v", err)
		}
		p, err := c.RunComponent(component, nil, "--v=1")
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "find the service account", func() error {
			_, err := accounts.Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	}
	if err := c.Err(); err != nil {
		t.Errorf("the control plane ended: %v", err)
	}
}

func TestStartGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := Start(ctx, Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "waiting until it is ready") {
		t.Errorf("when cancelled: %v", err)
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
	_, err := Start(t.Context(), Config{Args: []string{"kubelet=--v=1"}})
	if err == nil || !strings.Contains(err.Error(), "COMPONENT is one of") {
		t.Errorf("with an argument for an unknown component: %v", err)
	}
}
