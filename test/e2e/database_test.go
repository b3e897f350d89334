package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// caseBound is how long anything that a test awaits may take in all.
const caseBound = 100 * time.Second

// bounded is a context for one test, and for its cleanup another.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), caseBound, fmt.Errorf("it took longer than %v", caseBound))
	t.Cleanup(cancel)
	return ctx
}

// database is a StatefulSet of one writer on the volume that was provisioned for
// a claim of the same name.
type database struct {
	*world
	t    *testing.T
	name string
	// pv is the claim's.
	pv *v1.PersistentVolume
	// pod is the one that was last seen to run, and uids are all that ever were.
	pod  *v1.Pod
	uids []string
	// failed are the nodes from which the volume fails.
	failed []string
	// keepsHold: the node is not trusted again within the test's time.
	keepsHold bool
}

// node takes a node for the failures of one test.
func (w *world) node(t *testing.T) string {
	t.Helper()
	w.turns <- struct{}{}
	name := <-w.free
	t.Cleanup(func() {
		w.free <- name
		<-w.turns
	})
	return name
}

// database starts one on the node and waits until it writes.
func (w *world) database(ctx context.Context, t *testing.T, name, node string, changes ...func(*v1.PodTemplateSpec)) *database {
	t.Helper()
	db := w.create(ctx, t, name, node, changes...)
	db.runs(ctx)
	if node != "" && db.pod.Spec.NodeName != node {
		t.Fatalf("%s runs on %s and not on %s", name, db.pod.Spec.NodeName, node)
	}
	db.writes(ctx)
	return db
}

// create starts a database and does not wait for it.
func (w *world) create(ctx context.Context, t *testing.T, name, node string, changes ...func(*v1.PodTemplateSpec)) *database {
	t.Helper()
	db := w.provision(ctx, t, name)
	db.starts(ctx, node, changes...)
	return db
}

// provision makes the claim of a database that is not started yet.
func (w *world) provision(ctx context.Context, t *testing.T, name string) *database {
	t.Helper()
	pv, err := w.Provision(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	db := &database{world: w, t: t, name: name, pv: pv}
	t.Cleanup(db.cleanUp)
	return db
}

// starts creates the StatefulSet and does not wait for its pod.
func (db *database) starts(ctx context.Context, node string, changes ...func(*v1.PodTemplateSpec)) {
	db.t.Helper()
	template, err := rig.WriterPod(db.name, node)
	if err != nil {
		db.t.Fatal(err)
	}
	for _, change := range changes {
		change(&template)
	}
	if err := db.CreateStatefulSet(ctx, db.name, template); err != nil {
		db.t.Fatal(err)
	}
}

// runs waits until the first pod does.
func (db *database) runs(ctx context.Context) {
	db.t.Helper()
	pod, err := db.AwaitRunning(ctx, db.name+"-0", "")
	if err != nil {
		db.t.Fatalf("%v; it stands so: %s", err, db.stand())
	}
	db.pod, db.uids = pod, []string{string(pod.UID)}
}

// id is that of the volume at the driver.
func (db *database) id() string { return db.pv.Spec.CSI.VolumeHandle }

// attachment is the volume's VolumeAttachment on the node, nil when there is
// none.
func (db *database) attachment(node string) *storagev1.VolumeAttachment {
	return db.Attachment(db.pv.Name, node)
}

// fails makes the volume fail from the pod's node, and from others if named.
func (db *database) fails(ctx context.Context, more ...string) {
	db.t.Helper()
	for _, node := range append([]string{db.pod.Spec.NodeName}, more...) {
		if err := db.Driver.FailPath(ctx, db.id(), node); err != nil {
			db.t.Fatal(err)
		}
		if !slices.Contains(db.failed, node) {
			db.failed = append(db.failed, node)
		}
	}
}

func (db *database) heals(ctx context.Context) {
	db.t.Helper()
	for _, node := range db.failed {
		if err := db.Driver.HealPath(ctx, db.id(), node); err != nil {
			db.t.Error(err)
		}
	}
	db.failed = nil
}

// moves waits until the database writes on another node, and checks its file.
func (db *database) moves(ctx context.Context) {
	db.t.Helper()
	old := db.pod
	pod, err := db.AwaitRunning(ctx, old.Name, string(old.UID))
	if err != nil {
		db.t.Fatalf("%v; it stands so: %s", err, db.stand())
	}
	if pod.Spec.NodeName == old.Spec.NodeName {
		db.t.Fatalf("%s came back on %s", db.name, pod.Spec.NodeName)
	}
	db.pod = pod
	db.uids = append(db.uids, string(pod.UID))
	db.writes(ctx)
}

// writes waits for a line of the pod that runs now, and checks the file.
func (db *database) writes(ctx context.Context) {
	db.t.Helper()
	writer := string(db.pod.UID) + "@" + db.pod.Spec.NodeName
	db.await(ctx, db.name+" writes on "+db.pod.Spec.NodeName, func() bool {
		lines, err := db.Lines(db.name)
		return err == nil && len(lines) > 0 && lines[len(lines)-1].Writer == writer
	})
	if _, err := db.CheckVolume(db.name, db.uids...); err != nil {
		db.t.Fatal(err)
	}
}

// await is Await that ends the test.
func (db *database) await(ctx context.Context, what string, holds func() bool) {
	db.t.Helper()
	if err := db.Await(ctx, what, holds); err != nil {
		db.t.Fatalf("%v; it stands so: %s", err, db.stand())
	}
}

// awaitEvent waits for an event about the pod whose message has the text.
func (db *database) awaitEvent(ctx context.Context, reason, text string) {
	db.t.Helper()
	db.await(ctx, fmt.Sprintf("an event %s about %s says %q", reason, db.pod.Name, text), func() bool { return db.told(reason, text) })
}

func (db *database) told(reason, text string) bool {
	return slices.ContainsFunc(db.Events(db.pod.Name, reason), func(e *v1.Event) bool {
		return e.InvolvedObject.UID == db.pod.UID && strings.Contains(e.Message, text)
	})
}

// untouched checks, live, that neither the pod nor its VolumeAttachment was
// touched, nor ever had been since the pod ran.
func (db *database) untouched(ctx context.Context) {
	db.t.Helper()
	db.podStays(ctx)
	pod, err := db.Client.CoreV1().Pods(rig.Namespace).Get(ctx, db.pod.Name, metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp != nil {
		db.t.Fatalf("pod %s was asked to go: %v", db.pod.Name, err)
	}
	va := db.liveAttachment(ctx)
	if va == nil || va.DeletionTimestamp != nil || volume.Fenced(va) {
		db.t.Fatalf("the VolumeAttachment of %s was touched: %v", db.name, va)
	}
}

// podStays checks, live, that the pod was not force-deleted.
func (db *database) podStays(ctx context.Context) {
	db.t.Helper()
	pod, err := db.Client.CoreV1().Pods(rig.Namespace).Get(ctx, db.pod.Name, metav1.GetOptions{})
	if err != nil || pod.UID != db.pod.UID {
		db.t.Fatalf("pod %s was deleted: %v", db.pod.Name, err)
	}
}

func (db *database) liveAttachment(ctx context.Context) *storagev1.VolumeAttachment {
	db.t.Helper()
	va := db.attachment(db.pod.Spec.NodeName)
	if va == nil {
		return nil
	}
	va, err := db.Client.StorageV1().VolumeAttachments().Get(ctx, va.Name, metav1.GetOptions{})
	if err != nil {
		db.t.Fatal(err)
	}
	return va
}

// stand tells how things are, for the message of a failure.
func (db *database) stand() string {
	var b strings.Builder
	if pod := db.Pod(rig.Namespace, db.name+"-0"); pod != nil {
		fmt.Fprintf(&b, "pod %s on %s phase %s deleting %v; ", pod.UID, pod.Spec.NodeName, pod.Status.Phase, pod.DeletionTimestamp)
	}
	for _, n := range db.Nodes {
		if held(db.Node(n.Name)) {
			fmt.Fprintf(&b, "%s is held; ", n.Name)
		}
		if va := db.attachment(n.Name); va != nil {
			fmt.Fprintf(&b, "VolumeAttachment on %s attached %v deleting %v; ", n.Name, va.Status.Attached, va.DeletionTimestamp)
		}
	}
	for _, e := range db.Events(db.name+"-0", "FailoverRefused", "FailoverEnded", "FailoverDelayed", "FenceFailed", "FailedScheduling") {
		fmt.Fprintf(&b, "%s: %s; ", e.Reason, e.Message)
	}
	return b.String()
}

// cleanUp heals what fails, deletes the database and its claim, and waits until no
// trace of it is left: the volume at the driver, and the hold on its nodes unless
// that is to stay.
func (db *database) cleanUp() {
	ctx, cancel := cleanupContext()
	defer cancel()
	db.heals(ctx)
	background := metav1.DeletePropagationBackground
	err := db.Client.AppsV1().StatefulSets(rig.Namespace).Delete(ctx, db.name, metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		db.t.Error(err)
	}
	if err := db.Await(ctx, db.name+" leaves no trace", func() bool {
		if db.Pod(rig.Namespace, db.name+"-0") != nil {
			return false
		}
		for _, n := range db.Nodes {
			node := db.Node(n.Name)
			if db.attachment(n.Name) != nil || node == nil || !db.keepsHold && strings.Contains(node.Annotations[volume.HoldKey(rig.Driver)], `"`+db.pv.Name+`"`) {
				return false
			}
		}
		return true
	}); err != nil {
		db.t.Errorf("%v; it stands so: %s", err, db.stand())
	}
	if err := db.Unprovision(ctx, db.name, db.pv); err != nil {
		db.t.Error(err)
	}
}

func held(node *v1.Node) bool {
	return node != nil && slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == volume.HoldKey(rig.Driver) })
}

// nodeNamed is the rig's node of that name.
func (w *world) nodeNamed(name string) *rig.Node {
	return w.Nodes[slices.IndexFunc(w.Nodes, func(n *rig.Node) bool { return n.Name == name })]
}

// deletions are the UIDs of the pods of that name that were deleted, or asked to
// go, ever.
func (w *world) deletions(name string) []types.UID {
	var uids []types.UID
	for _, ch := range w.Observer.Changes() {
		pod, ok := ch.New.(*v1.Pod)
		if ch.Verb == "deleted" {
			pod, ok = ch.Old.(*v1.Pod)
		}
		if ok && pod.Name == name && (ch.Verb == "deleted" || pod.DeletionTimestamp != nil) && !slices.Contains(uids, pod.UID) {
			uids = append(uids, pod.UID)
		}
	}
	return uids
}

// cleanupContext outlives the test's own, which ends before its cleanup.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), caseBound)
}

// deleteNow deletes the object of that UID and no other.
func deleteNow(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}
