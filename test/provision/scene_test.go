package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

// scene is one test in a world: its class and claims bear its name.
type scene struct {
	*world
	t    *testing.T
	ctx  context.Context
	name string
	// policy is that of held claims; nil is the default, Delete.
	policy *v1.PersistentVolumeReclaimPolicy
}

func newScene(t *testing.T, w *world) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), caseBound, fmt.Errorf("the test takes more than %v", caseBound))
	t.Cleanup(cancel)
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", " ", "-").Replace(strings.TrimPrefix(t.Name(), "Test")))
	return &scene{world: w, t: t, ctx: ctx, name: name}
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) await(what string, done func() bool) {
	s.t.Helper()
	s.must(s.Await(s.ctx, s.name+": "+what, done))
}

// class makes the scene's StorageClass.
func (s *scene) class(change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	s.t.Helper()
	class, err := s.NewClass(s.ctx, s.name, func(c *storagev1.StorageClass) {
		for _, f := range change {
			f(c)
		}
	})
	s.must(err)
	return class
}

// claim makes a claim of the scene's class.
func (s *scene) claim(suffix string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	s.t.Helper()
	claim, err := s.NewClaim(s.ctx, s.name+suffix, s.name, func(c *v1.PersistentVolumeClaim) {
		for _, f := range change {
			f(c)
		}
	})
	s.must(err)
	return claim
}

func (s *scene) bound(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	s.t.Helper()
	pv, err := s.AwaitBound(s.ctx, claim.Namespace, claim.Name)
	s.must(err)
	return pv
}

func (s *scene) deleteClaim(claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	err := s.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(s.ctx, claim.Name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		s.must(err)
	}
}

// pvName is that of the claim's PersistentVolume, and of its volume at the driver.
func pvName(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

func (s *scene) pv(name string) *v1.PersistentVolume {
	pv, err := s.Client.CoreV1().PersistentVolumes().Get(s.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.must(err)
	return pv
}

// gone waits until neither the PersistentVolume nor the volume of a claim is there.
func (s *scene) gone(claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	s.await("the PersistentVolume and the volume are gone", func() bool { return s.pv(pvName(claim)) == nil && !s.exists(claim) })
}

// exists reports whether the driver has the volume of a claim.
func (s *scene) exists(claim *v1.PersistentVolumeClaim) bool {
	volumes, err := s.DriverVolumes(s.ctx)
	s.must(err)
	_, there := volumes[pvName(claim)]
	return there
}

// calls are those to the driver about the volume of a claim.
func (s *scene) calls(method string, claim *v1.PersistentVolumeClaim) (calls []simctl.Call) {
	s.t.Helper()
	all, err := s.Driver.Calls(s.ctx, method)
	s.must(err)
	for _, c := range all {
		if c.Name == pvName(claim) || c.Volume == volumeID(claim) {
			calls = append(calls, c)
		}
	}
	return calls
}

// told waits for an event on the object that says so.
func (s *scene) told(object, reason, text string) {
	s.t.Helper()
	s.await(fmt.Sprintf("event %s on %s says %q", reason, object, text), func() bool {
		return slices.ContainsFunc(s.Events(object, reason), func(e *v1.Event) bool { return strings.Contains(e.Message, text) })
	})
}
