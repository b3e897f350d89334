package capacity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// act is one thing that happens; a run's script is drawn before it begins.
type act struct {
	what        string
	zone, class string
	n           int
}

var genAct = rapid.Custom(func(t *rapid.T) act {
	return act{
		what: rapid.SampledFrom([]string{
			"place", "no place", "class", "no class", "room", "room", "fail", "heal", "delete", "add", "lose", "refuse", "forgive",
			"unknown places", "refresh", "restart", "wait", "wait", "wait",
		}).Draw(t, "what"),
		zone:  rapid.SampledFrom([]string{"zone=a", "zone=b", "zone=c"}).Draw(t, "zone"),
		class: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "class"),
		n:     rapid.IntRange(0, 4).Draw(t, "n"),
	}
})

var waits = []time.Duration{0, 10 * time.Millisecond, time.Second, 20 * time.Second, 10 * time.Minute}

// world is what a script has made of the surroundings.
type world struct {
	places  map[string]bool
	classes map[string]int
	made    int
}

func (w *world) play(r *rig, a act) {
	switch a.what {
	case "place", "no place":
		w.places[a.zone] = a.what == "place"
		r.places.set(nil, w.zones()...)
	case "unknown places":
		r.places.set(errors.New("not now"))
	case "class":
		if w.classes[a.class] == 0 {
			w.made++
			w.classes[a.class] = w.made
			r.class(a.class, func(c *storagev1.StorageClass) { c.UID = types.UID(fmt.Sprint(w.made)) })
		}
	case "no class":
		if w.classes[a.class] > 0 {
			w.classes[a.class] = 0
			r.noClass(a.class)
		}
	case "room":
		r.driver.set(func(d *fakeDriver) { d.room[a.zone] = int64(a.n) })
	case "fail":
		r.driver.set(func(d *fakeDriver) {
			d.answer = func(ctx context.Context, _, _ string, n int) (*csi.GetCapacityResponse, error) {
				if n%3 == 0 {
					<-ctx.Done()
				}
				if n%3 == 1 {
					panic("oh")
				}
				return nil, errDriver
			}
		})
	case "heal":
		r.driver.set(func(d *fakeDriver) { d.answer = nil })
	case "delete":
		for i, obj := range r.api.objects() {
			if r.c.cfg.isOurs(&obj) && (i+a.n)%2 == 0 {
				if err := r.api.Tracker().Delete(capacities, namespace, obj.Name); !apierrors.IsNotFound(err) { // the controller may be at it too
					must(err)
				}
			}
		}
	case "add":
		r.api.add(object(a.zone, a.class, driverName, ManagedByCentral))
	case "lose":
		n := 0
		r.api.setFault(func(string) (before, after error) {
			if n++; n <= a.n {
				return nil, errors.New("connection reset")
			}
			return nil, nil
		})
	case "refuse":
		r.api.setFault(refuse(forbidden(), []string{"create", "patch", "delete", "list", "none"}[a.n]))
	case "forgive":
		r.api.setFault(nil)
	case "refresh":
		r.c.Refresh(a.class, zone(strings.TrimPrefix(a.zone, "zone=")))
	case "restart":
		r.restart()
	case "wait":
		r.pass(waits[a.n])
	}
}

func (w *world) zones() []string {
	var zones []string
	for z, is := range w.places {
		if is {
			zones = append(zones, z)
		}
	}
	slices.Sort(zones)
	return zones
}

// Whatever happens, once it has stopped happening there is exactly one object for
// each place and class, and it says what the driver says; and others' objects are
// as they were.
func TestInTheEndThereIsOneObjectForEachItem(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(genAct, 1, 40).Draw(rt, "script")
		bubble(t, func(r *rig) {
			other := r.api.add(object("zone=a", "x", driverName, "somebody-else"))
			w := &world{places: map[string]bool{"zone=a": true}, classes: map[string]int{}}
			r.places.set(nil, w.zones()...)
			r.start()
			for _, a := range script {
				w.play(r, a)
			}
			r.api.setFault(nil)
			r.driver.set(func(d *fakeDriver) { d.answer = nil })
			r.places.set(nil, w.zones()...)
			r.pass(20 * time.Minute)
			want := []string{"zone=a x 1"} // the other's
			for _, z := range w.zones() {
				for class, uid := range w.classes {
					if uid > 0 {
						want = append(want, fmt.Sprintf("%s %s %d", z, class, r.driver.room[z]))
					}
				}
			}
			slices.Sort(want)
			if got := r.api.told(); !slices.Equal(got, want) {
				rt.Errorf("after %v the objects say %q, want %q", script, got, want)
			}
			if got, err := r.api.get(namespace, other.Name); err != nil || got.ResourceVersion != other.ResourceVersion {
				rt.Errorf("the other's object is %v, %v", got, err)
			}
			// And then it is quiet.
			before := r.api.writes()
			r.pass(5 * time.Minute)
			if n := r.api.writes() - before; n > 0 {
				rt.Errorf("%d writes without a cause", n)
			}
			if reports := r.reported(); len(reports) > 0 && reports[len(reports)-1] != "<nil>" {
				rt.Errorf("the last report is %q", reports[len(reports)-1])
			}
		})
	})
}
