package provision

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/capacity"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// A permission that is missing stops one thing, which says what to allow, and it
// goes on by itself when that is granted.
func TestPermissionsAreMissing(t *testing.T) {
	w := ownWorld(t, rig.Config{
		Replicas: 1, DriverArgs: []string{fmt.Sprintf("--capacity=%d", int64(1)<<40)},
		Values: []string{"provisioner.capacity=true"}, SidecarArgs: []string{"--capacity-ownerref-level=-1"},
	})
	w.forbids = true
	for name, test := range map[string]func(*scene){
		"Provisioner1277 the finalizer cannot be taken off": patchIsMissing,
		"the journal cannot be written":                     journalIsMissing,
		"the journal cannot be read":                        journalIsUnknown,
		"the secret cannot be read":                         secretsAreMissing,
		"capacity cannot be told":                           capacityIsMissing,
		"the attributes class cannot be read":               attributesClassesAreMissing,
		"the snapshot cannot be read":                       snapshotsAreMissing,
		"the snapshot cannot be protected":                  protectionIsMissing,
	} {
		t.Run(name, func(t *testing.T) { test(newScene(t, w)) })
	}
}

// The PersistentVolume stayed Terminating, and nothing said why. Its event does.
func patchIsMissing(s *scene) {
	s.class()
	claim := s.claim("")
	s.bound(claim)
	grant := s.forbid("", "persistentvolumes", "patch")
	s.deleteClaim(claim)
	s.told(pvName(claim), provisioner.ReasonVolumeFailedDelete, "allow patch of persistentvolumes")
	if s.pv(pvName(claim)) == nil {
		s.t.Error("the PersistentVolume is gone without our finalizer being taken off")
	}
	grant()
	s.gone(claim)
	s.once("DeleteVolume", claim)
}

// Without the journal nothing is begun: a volume could be lost.
func journalIsMissing(s *scene) {
	s.class()
	grant := s.forbid(rig.SidecarNamespace, "configmaps", "update")
	claim := s.claim("")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "allow get, list, create and update of configmaps")
	s.never("CreateVolume", claim)
	grant()
	s.bound(claim)
	s.once("CreateVolume", claim)
	s.deleteClaim(claim)
	s.gone(claim)
}

// Nor is anything begun by a new leader before it knows what was begun, and the
// claims that wait are told.
func journalIsUnknown(s *scene) {
	s.class()
	grant := s.forbid(rig.SidecarNamespace, "configmaps", "list")
	_, err := s.Restart(s.ctx)
	s.must(err)
	claim := s.claim("")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "allow get, list, create and update of configmaps")
	s.never("CreateVolume", claim)
	grant()
	s.bound(claim)
	s.once("CreateVolume", claim)
	s.deleteClaim(claim)
	s.gone(claim)
}

func secretsAreMissing(s *scene) {
	s.class(with(s.secret(s.name)))
	grant := s.forbid(rig.Namespace, "secrets", "get")
	claim := s.claim("")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "allow get of secrets there")
	s.never("CreateVolume", claim)
	grant()
	s.bound(claim)
	s.deleteClaim(claim)
	s.gone(claim)
}

// capacities are the objects that tell of free capacity for the scene's class.
func (s *scene) capacities() (n int) {
	s.t.Helper()
	all, err := s.Client.StorageV1().CSIStorageCapacities(rig.SidecarNamespace).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for i := range all.Items {
		if all.Items[i].StorageClassName == s.name {
			n++
		}
	}
	return n
}

// The scheduler is not told of free capacity, and the class says why, as nobody
// owns the objects. All else goes on.
func capacityIsMissing(s *scene) {
	grant := s.forbid(rig.SidecarNamespace, "csistoragecapacities.storage.k8s.io", "create")
	class := s.class(later)
	s.told(class.Name, capacity.ReasonRefused, "may not create csistoragecapacities of storage.k8s.io in namespace "+rig.SidecarNamespace+": grant get, list, watch, create")
	if n := s.capacities(); n != 0 {
		s.t.Errorf("%d CSIStorageCapacity objects", n)
	}
	claim := s.claim("")
	s.selectNode(claim, "node-1")
	s.bound(claim)
	s.deleteClaim(claim)
	s.gone(claim)
	grant()
	s.await("the scheduler is told of free capacity", func() bool { return s.capacities() == 1 })
	s.told(class.Name, capacity.ReasonAllowed, "again")
	if n := len(s.Events(class.Name, capacity.ReasonRefused)); n != 1 {
		s.t.Errorf("%d events of what is missing, want one", n)
	}
}

// attributesClassesAreMissing: claims without such a class do not need them.
func attributesClassesAreMissing(s *scene) {
	s.class()
	_, err := s.Client.StorageV1().VolumeAttributesClasses().Create(s.ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.name}, DriverName: rig.Driver, Parameters: map[string]string{"iops": "100"},
	}, metav1.CreateOptions{})
	s.must(err)
	s.waits("volumeattributesclasses.storage.k8s.io", "allow get of volumeattributesclasses", func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeAttributesClassName = &s.name
	})
}

// snapshotsAreMissing: claims that are restored from none do not need them.
func snapshotsAreMissing(s *scene) {
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	s.snapshot(origin, rig.Driver)
	s.waits("volumesnapshots.snapshot.storage.k8s.io", "grant the sidecar's ServiceAccount get on volumesnapshots.snapshot.storage.k8s.io", s.fromSnapshot)
	s.deleteSnapshot()
	s.snapshotGone()
	s.deleteClaim(origin)
	s.gone(origin)
}

// protectionIsMissing: the volume is made all the same.
func protectionIsMissing(s *scene) {
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	s.snapshot(origin, rig.Driver)
	grant := s.forbid(rig.Namespace, "volumesnapshots.snapshot.storage.k8s.io", "update")
	claim := s.claim("", s.fromSnapshot)
	s.told(claim.Name, provisioner.ReasonSourceUnprotected, "grant the sidecar's ServiceAccount update on volumesnapshots.snapshot.storage.k8s.io")
	s.bound(claim)
	grant()
	s.deleteSnapshot()
	s.snapshotGone()
	for _, c := range []*v1.PersistentVolumeClaim{claim, origin} {
		s.deleteClaim(c)
		s.gone(c)
	}
}

// waits forbids to get a resource that the claim needs: the claim is told so and
// waits, another does not, and it gets its volume when the permission is there.
func (s *scene) waits(resource, says string, needs func(*v1.PersistentVolumeClaim)) {
	s.t.Helper()
	grant := s.forbid(rig.Namespace, resource, "get")
	claim := s.claim("", needs)
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, says)
	beside := s.claim("-beside")
	s.bound(beside)
	s.never("CreateVolume", claim)
	grant()
	s.bound(claim)
	s.once("CreateVolume", claim)
	for _, c := range []*v1.PersistentVolumeClaim{claim, beside} {
		s.deleteClaim(c)
		s.gone(c)
	}
}

// forbid takes a permission out of all roles of the chart, and returns when it is
// gone. The result grants it again. The resource is one of the core, or bears its
// group behind a dot.
func (s *scene) forbid(namespace, groupResource, verb string) (grant func()) {
	s.t.Helper()
	resource := schema.ParseGroupResource(groupResource)
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=csi-controller"}
	clusterRoles, err := s.Client.RbacV1().ClusterRoles().List(s.ctx, selector)
	s.must(err)
	roles, err := s.Client.RbacV1().Roles(rig.SidecarNamespace).List(s.ctx, selector)
	s.must(err)
	set := func(change func([]rbacv1.PolicyRule) []rbacv1.PolicyRule) {
		s.t.Helper()
		var errs []error
		for i := range clusterRoles.Items {
			role := clusterRoles.Items[i].DeepCopy()
			role.ResourceVersion, role.Rules = "", change(role.Rules)
			_, err := s.Client.RbacV1().ClusterRoles().Update(s.ctx, role, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
		for i := range roles.Items {
			role := roles.Items[i].DeepCopy()
			role.ResourceVersion, role.Rules = "", change(role.Rules)
			_, err := s.Client.RbacV1().Roles(rig.SidecarNamespace).Update(s.ctx, role, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
		s.must(errors.Join(errs...))
	}
	set(func(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule { return without(rules, resource.Resource, verb) })
	s.awaitAllowed(namespace, resource, verb, false)
	return func() {
		s.t.Helper()
		set(func(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule { return rules })
		s.awaitAllowed(namespace, resource, verb, true)
	}
}

// without gives the rules without one verb on one resource.
func without(rules []rbacv1.PolicyRule, resource, verb string) (left []rbacv1.PolicyRule) {
	for _, rule := range rules {
		if !slices.Contains(rule.Resources, resource) || !slices.Contains(rule.Verbs, verb) {
			left = append(left, rule)
			continue
		}
		others, rest := *rule.DeepCopy(), *rule.DeepCopy()
		others.Resources = slices.DeleteFunc(others.Resources, func(r string) bool { return r == resource })
		if len(others.Resources) > 0 {
			left = append(left, others)
		}
		rest.Resources = []string{resource}
		rest.Verbs = slices.DeleteFunc(rest.Verbs, func(v string) bool { return v == verb })
		if len(rest.Verbs) > 0 {
			left = append(left, rest)
		}
	}
	return left
}

// awaitAllowed waits until the API server agrees.
func (s *scene) awaitAllowed(namespace string, resource schema.GroupResource, verb string, want bool) {
	s.t.Helper()
	bindings, err := s.Client.RbacV1().RoleBindings(rig.SidecarNamespace).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	subject := bindings.Items[0].Subjects[0]
	s.await(fmt.Sprintf("%s of %s is allowed: %v", verb, resource, want), func() bool {
		review, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(s.ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + subject.Namespace + ":" + subject.Name,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Group: resource.Group, Resource: resource.Resource, Verb: verb},
			},
		}, metav1.CreateOptions{})
		s.must(err)
		return review.Status.Allowed == want
	})
}
