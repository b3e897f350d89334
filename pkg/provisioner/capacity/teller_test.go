package capacity

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// heard is what a recorder was given, as "type reason kind/namespace/name: text".
type heard struct {
	mu     sync.Mutex
	events []string
}

func (h *heard) Event(object runtime.Object, eventtype, reason, message string) {
	ref, ok := object.(*v1.ObjectReference)
	if !ok {
		panic(fmt.Sprintf("an event on %T", object))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf("%s %s %s %s/%s/%s(%s): %s", eventtype, reason, ref.APIVersion, ref.Kind, ref.Namespace, ref.Name, ref.UID, message))
}

func (h *heard) Eventf(object runtime.Object, eventtype, reason, format string, args ...any) {
	h.Event(object, eventtype, reason, fmt.Sprintf(format, args...))
}

func (h *heard) AnnotatedEventf(object runtime.Object, _ map[string]string, eventtype, reason, format string, args ...any) {
	h.Eventf(object, eventtype, reason, format, args...)
}

// listen makes events of what the rig's controllers report.
func (r *rig) listen(owner *metav1.OwnerReference) *heard {
	h := &heard{}
	r.tune = func(cfg *Config) {
		cfg.Owner = owner
		teller, err := NewTeller(*cfg, h)
		if err != nil {
			r.t.Fatal(err)
		}
		cfg.Report = teller.Report
	}
	return h
}

// wantHeard compares what was heard since the last time, each with its beginning
// and what it says.
func (r *rig) wantHeard(h *heard, want ...[2]string) {
	r.t.Helper()
	h.mu.Lock()
	got := h.events
	h.events = nil
	h.mu.Unlock()
	if len(got) != len(want) {
		r.t.Fatalf("heard\n%s\nwant %q", strings.Join(got, "\n"), want)
	}
	for i, w := range want {
		if !strings.HasPrefix(got[i], w[0]) || !strings.Contains(got[i], w[1]) {
			r.t.Errorf("event %d is %q, want one that begins with %q and says %q", i, got[i], w[0], w[1])
		}
	}
}

const (
	ownerWarned = "Warning CapacityRefused apps/v1 Deployment/storage/csi(csi-uid): "
	ownerEased  = "Normal CapacityAllowed apps/v1 Deployment/storage/csi(csi-uid): "
	grantIt     = "grant get, list, watch, create, update, patch and delete to this service account by a Role"
)

func deployment() *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "csi", UID: "csi-uid"}
}

// The owner of the objects is told once what is missing, and once that it is
// granted; a right that is missing beside another is news.
func TestTheOwnerIsToldOnceUntilItIsGranted(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.listen(deployment())
		r.places.set(nil, "zone=a", "zone=b")
		r.class("c", nil)
		r.api.setFault(refuse(forbidden(), "create"))
		r.start()
		r.pass(20 * time.Minute)
		r.wantHeard(h, [2]string{ownerWarned, "may not create csistoragecapacities of storage.k8s.io in namespace storage: " + grantIt})

		r.api.setFault(refuse(forbidden(), "create", "delete"))
		r.api.add(object("zone=gone", "c", driverName, ManagedByCentral))
		r.pass(10 * time.Minute)
		r.wantHeard(h, [2]string{ownerWarned, "may not delete"})

		// Half of it is no end of it, nor is it told again.
		r.api.setFault(refuse(forbidden(), "delete"))
		r.pass(10 * time.Minute)
		r.wantHeard(h)
		r.expect("zone=a c 0", "zone=b c 0", "zone=gone c 1")

		r.api.setFault(nil)
		r.pass(10 * time.Minute)
		r.wantHeard(h, [2]string{ownerEased, "told of free capacity again"})
		r.expect("zone=a c 0", "zone=b c 0")

		r.api.setFault(refuse(forbidden(), "patch"))
		r.driver.set(func(d *fakeDriver) { d.room["zone=a"] = 5 })
		r.pass(10 * time.Minute)
		r.wantHeard(h, [2]string{ownerWarned, "may not patch"})
	})
}

// Without an owner each class is told that there would be objects for, a new one
// as soon as it is there, and one that has gone no more.
func TestTheClassesAreToldWhereThereIsNoOwner(t *testing.T) {
	bubble(t, func(r *rig) {
		warned := func(class string) string {
			return fmt.Sprintf("Warning CapacityRefused storage.k8s.io/v1 StorageClass//%s(class-%s): ", class, class)
		}
		eased := func(class string) string {
			return fmt.Sprintf("Normal CapacityAllowed storage.k8s.io/v1 StorageClass//%s(class-%s): ", class, class)
		}
		h := r.listen(nil)
		r.places.set(nil, "zone=a")
		r.class("b", nil)
		r.class("a", nil)
		r.class("immediate", func(c *storagev1.StorageClass) { c.VolumeBindingMode = nil })
		r.class("foreign", func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" })
		r.api.setFault(refuse(forbidden(), "list"))
		r.start()
		r.pass(20 * time.Minute)
		// The list may be refused before the classes are there, which come in any order.
		h.mu.Lock()
		slices.Sort(h.events)
		h.mu.Unlock()
		r.wantHeard(h, [2]string{warned("a"), "may not list csistoragecapacities"}, [2]string{warned("b"), grantIt})

		r.class("later", nil)
		r.noClass("a")
		r.pass(time.Second)
		r.wantHeard(h, [2]string{warned("later"), "may not list"})
		r.class("b", func(c *storagev1.StorageClass) { c.Labels = map[string]string{"changed": "yes"} })
		r.pass(time.Minute)
		r.wantHeard(h)

		r.api.setFault(nil)
		r.pass(5 * time.Minute)
		r.wantHeard(h, [2]string{eased("b"), ""}, [2]string{eased("later"), ""})
		r.expect("zone=a b 0", "zone=a later 0")
		r.class("after", nil)
		r.pass(time.Minute)
		r.wantHeard(h)
	})
}
