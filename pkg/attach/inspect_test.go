package attach

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVolumes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"password": []byte("hunter2")}}
		a := rwo("a")
		a.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "s"}
		r := newRig(newFakeDriver("h-a", "h-b"), objects(a, rwo("b"), secret, node("n1"), node("n2"), published("va3", "b", "n2", true))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.api.add(va("va2", "a", "n2"))
			r.settle(time.Second)
			got := r.c.Volumes()
			want := []VolumeStatus{
				{Handle: "h-a", Holds: true, Nodes: []NodeStatus{
					{Node: "n1", State: Attached, Wanted: true, Attachments: []string{"va1"}},
					{Node: "n2", State: Absent, Wanted: true, Attachments: []string{"va2"}},
				}},
				{Handle: "h-b", Holds: true, Nodes: []NodeStatus{{Node: "n2", State: Attached, Wanted: true, Inherited: true, Attachments: []string{"va3"}}}},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Volumes() (-want +got):\n%s", diff)
			}
			text, err := json.Marshal(got)
			must(err)
			if s := string(text); strings.Contains(s, "hunter2") || strings.Contains(s, "/dev/h-a") {
				t.Errorf("a secret, or a publish context, is shown: %s", s)
			}
			for _, name := range []string{"va1", "va2", "va3"} {
				r.api.remove(vaResource, name)
			}
			r.settle(time.Minute)
			if got := r.c.Volumes(); len(got) != 0 || got == nil {
				t.Errorf("Volumes() = %v after all detaches, want an empty list", got)
			}
		})
	})
}
