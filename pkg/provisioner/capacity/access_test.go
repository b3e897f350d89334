package capacity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func refuse(err error, verbs ...string) func(string) (before, after error) {
	return func(verb string) (before, after error) {
		for _, v := range verbs {
			if v == verb {
				return err, nil
			}
		}
		return nil, nil
	}
}

func (r *rig) expectReports(want ...string) {
	r.t.Helper()
	got := r.reported()
	if len(got) != len(want) {
		r.t.Fatalf("reported %q, want %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			r.t.Errorf("report %d is %q, want one that says %q", i, got[i], want[i])
		}
	}
}

// Without the permission to create nothing is asked of the driver in vain, one
// report says what to grant, and once it is granted all is well by itself.
func TestAMissingPermissionIsToldOnceAndGrantedOnceIsEnough(t *testing.T) {
	bubble(t, func(r *rig) {
		var zones, want []string
		for i := range 200 {
			zones = append(zones, fmt.Sprintf("zone=%d", i))
			want = append(want, fmt.Sprintf("zone=%d c 0", i))
		}
		r.places.set(nil, zones...)
		r.class("c", nil)
		r.api.setFault(refuse(forbidden(), "create"))
		r.start()
		r.pass(10 * time.Minute)
		r.expectReports("may not create csistoragecapacities of storage.k8s.io in namespace storage: grant get, list, watch")
		r.expect()
		r.expectMetric("ha_sidecar_capacity_refused{verb=create}", 1)
		if n := r.driver.calledAtAll(); n > 20 {
			t.Errorf("the driver was asked %d times for what cannot be written", n)
		}
		r.api.setFault(nil)
		r.pass(2 * time.Minute)
		r.expectReports("may not create", "<nil>")
		r.expect(want...)
		r.expectMetric("ha_sidecar_capacity_refused{verb=create}", 0)
	})
}

// What may not be deleted holds up nothing else.
func TestAMissingPermissionToDeleteHoldsUpNothingElse(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.api.add(object("zone=gone", "c", driverName, ManagedByCentral))
		r.api.add(object("zone=a", "c", driverName, ManagedByCentral))
		r.api.add(object("zone=a", "c", driverName, ManagedByCentral))
		r.api.setFault(refuse(forbidden(), "delete"))
		r.driver.room["zone=a"] = 5
		r.start()
		r.pass(5 * time.Minute)
		r.expectReports("may not delete")
		r.expect("zone=a c 1", "zone=a c 5", "zone=gone c 1")
		r.expectMetric("csistoragecapacities_obsolete", 2)
		r.api.setFault(nil)
		r.pass(5 * time.Minute)
		r.expectReports("may not delete", "<nil>")
		r.expect("zone=a c 5")
		r.expectMetric("csistoragecapacities_obsolete", 0)
	})
}

func TestAMissingPermissionToPatch(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.start()
		r.api.setFault(refuse(forbidden(), "patch"))
		r.driver.set(func(d *fakeDriver) { d.room["zone=a"] = 5 })
		r.pass(5 * time.Minute)
		r.expectReports("may not patch")
		r.api.setFault(nil)
		r.pass(5 * time.Minute)
		r.expectReports("may not patch", "<nil>")
		r.expect("zone=a c 5")
	})
}

// Until the objects can be listed none is made: there may be one already.
func TestWithoutAListNothingIsDone(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		says string
	}{
		"forbidden":       {forbidden(), "may not list"},
		"an old server":   {apierrors.NewNotFound(capacities.GroupResource(), ""), "does not know CSIStorageCapacity of storage.k8s.io/v1"},
		"a passing fault": {apierrors.NewInternalError(errDriver), ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.places.set(nil, "zone=a")
				r.class("c", nil)
				r.api.setFault(refuse(test.err, "list"))
				r.start()
				r.pass(10 * time.Minute)
				want := []string{}
				if test.says != "" {
					want = append(want, test.says)
				}
				r.expectReports(want...)
				r.expect()
				if n := r.driver.calledAtAll(); n > 0 {
					t.Errorf("the driver was asked %d times", n)
				}
				r.api.setFault(nil)
				r.pass(2 * time.Minute)
				if test.says != "" {
					want = append(want, "<nil>")
				}
				r.expectReports(want...)
				r.expect("zone=a c 0")
			})
		})
	}
}

func TestANamespaceThatIsNotThere(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.api.setFault(refuse(apierrors.NewNotFound(capacities.GroupResource(), ""), "create"))
		r.start()
		r.pass(5 * time.Minute)
		r.expectReports("there is no namespace storage")
		r.api.setFault(nil)
		r.pass(5 * time.Minute)
		r.expect("zone=a c 0")
	})
}
