package attach

import (
	"fmt"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// writtenBy is a write of finalizer and annotations as the API server notes it.
func writtenBy(manager string, annotations ...string) func(runtime.Object) {
	return func(o runtime.Object) {
		a := o.(*storagev1.VolumeAttachment)
		a.Finalizers = []string{finalizer}
		a.Annotations = map[string]string{}
		var fields []string
		for _, name := range annotations {
			a.Annotations[name] = "x"
			fields = append(fields, fmt.Sprintf("%q:{}", "f:"+name))
		}
		a.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(
			`{"f:metadata":{"f:annotations":{%s},"f:finalizers":{".":{},"v:\"%s\"":{}}}}`, strings.Join(fields, ","), finalizer))}}
	}
}

// An external-attacher that runs without leader election is noticed by what it
// writes, and both do not go on to call the driver.
func TestForeignAttacher(t *testing.T) {
	for name, tc := range map[string]struct {
		manager     string
		annotations []string
		after       time.Duration
		stops       bool
	}{
		"at work":                         {"csi-attacher", []string{volume.AnnotationNodeID}, time.Minute, true},
		"a late write of the last leader": {"csi-attacher", []string{volume.AnnotationNodeID}, 0, false},
		"a former leader of ours":         {fieldManager, []string{volume.AnnotationNodeID}, time.Minute, false},
		"a person":                        {"kubectl-edit", nil, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				// The node is not registered, so that ours has nothing to write.
				r := newRig(newFakeDriver("h-a"), objects(rwo("a"), rwo("b"), node("n1"))...)
				r.run(t, func(t *testing.T) {
					r.settle(tc.after)
					r.api.add(va("va", "a", "n2"))
					r.settle(time.Second)
					r.told()
					write := writtenBy(tc.manager, tc.annotations...)
					r.api.PrependReactor("get", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
						a := r.api.va("va")
						write(a) // the fake has an idea of its own of who writes
						return true, a, nil
					})
					r.api.change(vaResource, "va", write)
					r.settle(time.Second)
					select {
					case err := <-r.done:
						if err == nil || !strings.Contains(err.Error(), `"csi-attacher"`) || !strings.Contains(err.Error(), "--controllers=-attacher") {
							t.Errorf("Run returned %v", err)
						}
						r.done <- nil
						if !tc.stops {
							t.Error("it stopped")
						}
						if told := r.told(); len(told) != 1 || !strings.Contains(told[0], ReasonForeignAttacher) {
							t.Errorf("events %q", told)
						}
						calls := r.driver.log()
						r.api.add(va("vb", "b", "n1"))
						r.settle(time.Minute)
						wantCalls(t, r, calls)
					default:
						if tc.stops {
							t.Error("it goes on")
						}
					}
				})
			})
		})
	}
}

// Of two attachers that write the same finalizer at once the slower one tells.
func TestForeignAttacherIsFaster(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		write, done := writtenBy("csi-attacher", volume.AnnotationNodeID), false
		r.api.setFault(func(resource, sub string) (error, error) {
			if resource == "volumeattachments" && sub == "" && !done {
				done = true
				a := r.api.va("va")
				write(a)
				r.api.store(vaResource, a)
			}
			return nil, nil
		})
		r.api.PrependReactor("get", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
			a := r.api.va("va")
			write(a)
			return true, a, nil
		})
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Hour)
			select {
			case err := <-r.done:
				if err == nil {
					t.Error("Run returned no error")
				}
				r.done <- nil
			default:
				t.Error("it goes on")
			}
		})
	})
}

// What an external-attacher has left to us is none of a foreigner's doing.
func TestTakeoverIsNotForeign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		left := published("va", "a", "n1", true)
		writtenBy("csi-attacher", volume.AnnotationNodeID)(left)
		left.Annotations[volume.AnnotationNodeID] = "id-n1"
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), left)...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			r.api.change(vaResource, "va", func(o runtime.Object) { o.(*storagev1.VolumeAttachment).Labels = map[string]string{"touched": "1"} })
			r.settle(time.Minute)
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
		})
	})
}
