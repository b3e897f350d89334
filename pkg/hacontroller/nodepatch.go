package hacontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodePatch is a JSON patch (RFC 6902) of a Node that is refused whole when
// anything that it replaces is not what it was made from. The rest of the Node
// may change meanwhile. Its agent and kube-controller-manager see to that all the
// time, most of all while many volumes leave it: a patch bound to the version
// would lose against them again and again.
type nodePatch struct {
	node           *v1.Node
	tests, changes []patchOp
}

// patchOp is one operation. A test for null holds where there is nothing.
type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

const (
	annotationsPath = "/metadata/annotations"
	taintsPath      = "/spec/taints"
)

func newNodePatch(node *v1.Node) *nodePatch {
	p := &nodePatch{node: node}
	p.test("/metadata/uid", string(node.UID))
	if len(node.Annotations) == 0 {
		p.test(annotationsPath, nil)
		p.change("add", annotationsPath, map[string]string{})
	}
	return p
}

func (p *nodePatch) test(path string, value any) {
	p.tests = append(p.tests, patchOp{"test", path, value})
}

func (p *nodePatch) change(op, path string, value any) {
	p.changes = append(p.changes, patchOp{op, path, value})
}

// unchangedSince binds the patch to the version that was read after all: for a
// change that depends on the Node's status.
func (p *nodePatch) unchangedSince() {
	p.test("/metadata/resourceVersion", p.node.ResourceVersion)
}

func (p *nodePatch) setAnnotation(key, value string) {
	p.testAnnotation(key)
	p.change("add", annotationPath(key), value)
}

func (p *nodePatch) removeAnnotation(key string) {
	p.testAnnotation(key)
	if _, ok := p.node.Annotations[key]; ok {
		p.change("remove", annotationPath(key), nil)
	}
}

func (p *nodePatch) testAnnotation(key string) {
	if old, ok := p.node.Annotations[key]; ok {
		p.test(annotationPath(key), old)
	} else if len(p.node.Annotations) > 0 {
		p.test(annotationPath(key), nil)
	}
}

func annotationPath(key string) string {
	return annotationsPath + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// setTaints replaces the taints, which are one atomic list.
func (p *nodePatch) setTaints(taints []v1.Taint) {
	if len(p.node.Spec.Taints) == 0 {
		p.test(taintsPath, nil)
	} else {
		p.test(taintsPath, p.node.Spec.Taints)
	}
	if !slices.Equal(taints, p.node.Spec.Taints) {
		p.change("add", taintsPath, taints)
	}
}

func (p *nodePatch) encode() ([]byte, error) {
	patch, err := json.Marshal(slices.Concat(p.tests, p.changes))
	if err != nil {
		return nil, fmt.Errorf("encoding a patch of node %s: %w", p.node.Name, err)
	}
	return patch, nil
}

// patchNode applies p. A Node that is not what p was made from is a conflict.
func (hac *haController) patchNode(ctx context.Context, p *nodePatch) (*v1.Node, error) {
	patch, err := p.encode()
	if err != nil {
		return nil, err
	}
	var updated *v1.Node
	err = hac.write(ctx, func(ctx context.Context) error {
		var err error
		updated, err = hac.client.CoreV1().Nodes().Patch(ctx, p.node.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
		return err
	})
	if testFailed(err) {
		err = apierrors.NewConflict(v1.Resource("nodes"), p.node.Name, err)
	}
	return updated, err
}

// testFailed reports whether a test of a JSON patch did not hold. The API server
// answers that the request is invalid and names no field, as it does for what is
// really invalid.
func testFailed(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || !slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Field != "" })
}
