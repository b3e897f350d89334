package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ha-sidecar/ha-sidecar/internal/testcluster"
	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

const (
	auditLog  = "audit.log"
	className = "bench"
	namespace = "default"
	size      = 1 << 30
)

// stage is a control plane with a driver and a StorageClass, and nobody who
// provisions yet.
type stage struct {
	dir     string
	cluster *testcluster.Cluster
	// admin is the bench's own client, which has no limit.
	admin  kubernetes.Interface
	driver *csidriver.Driver
	log    *audit.Follower
	turns  int
}

func (w *stage) socket() string { return filepath.Join(w.dir, "driver.sock") }

// enter starts it in a directory.
func enter(ctx context.Context, dir string, p plan) (_ *stage, err error) {
	w := &stage{dir: dir, log: audit.Follow(filepath.Join(dir, auditLog))}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.leave())
		}
	}()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o755); err != nil {
		return nil, err
	}
	if w.cluster, err = testcluster.Start(ctx, testcluster.Config{
		Dir: filepath.Join(dir, "cluster"), Args: p.clusterArgs, AuditLog: filepath.Join(dir, auditLog),
	}); err != nil {
		return nil, err
	}
	if w.admin, err = world.Admin(w.cluster.RESTConfig(), ""); err != nil {
		return nil, err
	}
	if w.driver, err = csidriver.Start(ctx, csidriver.Config{Name: driverName, Socket: w.socket(), Latency: p.latency, Capacity: p.capacity}); err != nil {
		return nil, err
	}
	return w, w.furnish(ctx, p.capacity != nil)
}

// furnish makes what a cluster with the driver has; capacity tells the scheduler
// that the driver tells its capacity.
func (w *stage) furnish(ctx context.Context, capacity bool) error {
	if _, err := w.admin.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaseNamespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating namespace %s: %w", leaseNamespace, err)
	}
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &capacity}}
	if _, err := w.admin.StorageV1().CSIDrivers().Create(ctx, driver, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating CSIDriver %s: %w", driverName, err)
	}
	at, policy := storagev1.VolumeBindingImmediate, v1.PersistentVolumeReclaimDelete
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: driverName, VolumeBindingMode: &at, ReclaimPolicy: &policy,
	}
	if _, err := w.admin.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating StorageClass %s: %w", className, err)
	}
	return nil
}

// leave ends it.
func (w *stage) leave() error {
	var errs []error
	if w.cluster != nil {
		errs = append(errs, w.cluster.Stop())
	}
	if w.driver != nil {
		errs = append(errs, w.driver.Stop())
	}
	return errors.Join(errs...)
}

const (
	// quiet is how long nothing must have been written for all to be at rest: long
	// enough, too, for the limits of everyone's shipped defaults to forget what was.
	quiet = 3 * time.Second
	look  = 250 * time.Millisecond
	// restBound is above what the slowest side takes to write its last events.
	restBound = 5 * time.Minute
)

// rest waits until neither the side nor kube-controller-manager's binder has
// written anything for a while.
func (w *stage) rest(ctx context.Context, s side) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restBound, fmt.Errorf("%s still writes after %v", s.title, restBound))
	defer cancel()
	for last := time.Now(); time.Since(last) < quiet; {
		writes, err := w.log.Writes(s.agent(), binding)
		if err != nil {
			return err
		}
		if writes > 0 {
			last = time.Now()
		}
		if err := world.Pause(ctx, look); err != nil {
			return err
		}
	}
	return nil
}
