package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const controllerManager = "kube-controller-manager"

// apart lists what the control plane is started without.
func (r *Rig) apart() []string {
	if r.cfg.ControllerManagerApart {
		return []string{controllerManager}
	}
	return nil
}

// StartControllerManager starts kube-controller-manager, where it is apart, and
// waits until its controllers work.
func (r *Rig) StartControllerManager(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(r.cfg.Dir, "logs", controllerManager+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var args []string
	for _, arg := range r.cfg.ClusterArgs {
		if own, found := strings.CutPrefix(arg, controllerManager+"="); found {
			args = append(args, own)
		}
	}
	if r.manager, err = r.Cluster.RunComponent(controllerManager, log, args...); err != nil {
		return fmt.Errorf("starting %s: %w", controllerManager, err)
	}
	// What it does first of all for a new namespace shows that it works.
	fresh, err := r.Client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "fresh-"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making a namespace for %s to act on: %w", controllerManager, err)
	}
	return r.Await(ctx, controllerManager+" works", func() bool {
		for _, namespace := range []string{fresh.Name, Namespace} {
			if _, err := r.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); err != nil {
				return false
			}
		}
		return true
	})
}

// StopControllerManager ends kube-controller-manager, where it is apart and runs.
func (r *Rig) StopControllerManager() error {
	if r.manager == nil {
		return nil
	}
	p := r.manager
	r.manager = nil
	return p.Stop(stopBound)
}

// KillControllerManager ends it at once, in the middle of whatever it does.
func (r *Rig) KillControllerManager() {
	r.manager.Kill()
	r.manager = nil
}
