package nodeshare

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Sharer decides for one node which claims are its own, and takes those that it
// may. It is safe for concurrent use, but not for one claim.
type Sharer struct {
	cfg   Config
	races *races
}

// New returns a Sharer. The error tells what is wrong with the config.
func New(cfg Config) (*Sharer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Sharer{cfg: cfg, races: newRaces(cfg.BaseDelay, cfg.MaxDelay, cfg.Random)}, nil
}

// Share implements provisioner.Sharer. It never waits itself. A claim that it has
// taken is ours only once it is seen to be: its change has the claim asked about
// again.
func (s *Sharer) Share(ctx context.Context, claim *v1.PersistentVolumeClaim) (mine bool, again time.Duration, err error) {
	class, err := s.class(claim)
	if err != nil {
		return false, 0, err
	}
	switch decide(s.situation(ctx, claim, class)) {
	case provision:
		return true, 0, nil
	case leave:
		s.races.forget(claim.UID)
		return false, 0, nil
	}
	if wait := s.races.wait(claim.UID, s.cfg.Clock.Now()); wait > 0 {
		return false, wait, nil
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("claim", klog.KObj(claim), "node", s.cfg.Node))
	if !s.fits(ctx, claim, class) {
		return false, s.races.again(claim.UID, s.cfg.Clock.Now(), true), nil
	}
	switch err := s.take(ctx, claim); {
	case err == nil:
		s.races.won(claim.UID, s.cfg.Clock.Now())
		klog.FromContext(ctx).V(2).Info("Took the claim")
		return false, 0, nil
	case apierrors.IsNotFound(err):
		s.races.forget(claim.UID)
		return false, 0, nil
	case apierrors.IsConflict(err):
		klog.FromContext(ctx).V(4).Info("The claim has changed meanwhile")
		return false, s.races.again(claim.UID, s.cfg.Clock.Now(), false), nil
	default:
		return false, 0, fmt.Errorf("taking claim %s/%s for node %s: %w", claim.Namespace, claim.Name, s.cfg.Node, err)
	}
}

// Owns implements provisioner.Sharer.
func (s *Sharer) Owns(claim *v1.PersistentVolumeClaim) bool {
	return provisioner.SelectedNode(claim) == s.cfg.Node
}

// class reads the class of a claim; nil if there is none.
func (s *Sharer) class(claim *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := provisioner.ClassName(claim)
	class, err := s.cfg.Classes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading StorageClass %q: %w", name, err)
	}
	return class, nil
}

func (s *Sharer) situation(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) situation {
	sit := situation{node: s.cfg.Node, selected: provisioner.SelectedNode(claim), class: class, immediate: s.cfg.Immediate}
	if class == nil || sit.selected != "" {
		return sit
	}
	admitted, err := s.cfg.Place.Admitted(class.AllowedTopologies)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The allowedTopologies of a class cannot be used", "storageClass", class.Name, "reason", err.Error())
	}
	sit.admitted = admitted && err == nil
	return sit
}

// fits reports whether a claim is to be tried for here. Why it is not is logged
// once: all nodes may find the same.
func (s *Sharer) fits(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	room, err := s.cfg.HasRoom(ctx, claim, class)
	reason := "the driver has no room for it here"
	switch {
	case err == nil && room:
		return true
	case err != nil && volume.OutcomeOf(err) != volume.OutcomeRetry:
		klog.FromContext(ctx).V(2).Info("The driver does not tell whether it has room, the claim is taken all the same", "reason", err.Error())
		return true
	case err != nil:
		reason = err.Error()
	}
	if s.races.news(claim.UID, reason) {
		klog.FromContext(ctx).Info("The claim is not taken for now", "reason", reason)
	}
	return false
}
