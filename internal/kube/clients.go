package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// What is sent per second where the server does not do priority and fairness.
const (
	fallbackQPS   = 50
	fallbackBurst = 100
)

// ErrNotLeader is what a gated client returns for a write after the lease has
// run out.
var ErrNotLeader = errors.New("not the leader: the write was not sent")

// Config of Clients.
type Config struct {
	// Kubeconfig is a path; empty means the Pod's own ServiceAccount.
	Kubeconfig string
	// Master is the server's URL; empty means the one that is named there.
	Master string
	// QPS and Burst of 0 mean automatic: no limit where the server has API
	// priority and fairness, 50 and 100 elsewhere.
	QPS   float32
	Burst int
	// CapacityQPS and CapacityBurst limit the capacity lane alone, beside the
	// above. 0: it is the work lane.
	CapacityQPS   float32
	CapacityBurst int
	// UserAgent names the process; each lane adds its own name.
	UserAgent string
	// LeaseTimeout bounds one request of the lease lane.
	LeaseTimeout time.Duration
	// MayWrite is asked before each request that is not a read, on every lane
	// but that of leases. It must be cheap.
	MayWrite func() bool
}

// Clients are the lanes to the API server: a burst on one never delays
// another.
type Clients struct {
	// Lease carries lease renewals and nothing else.
	Lease kubernetes.Interface
	// Work carries everything the controllers read and write.
	Work kubernetes.Interface
	// Capacity carries what is read and written of CSIStorageCapacity objects.
	Capacity kubernetes.Interface
	// Dynamic is Work for what has no client of its own: objects of CRDs.
	Dynamic dynamic.Interface
	// Events carries events.
	Events kubernetes.Interface
}

// NewClients connects the lanes. It asks the server once whether it has
// priority and fairness.
func NewClients(ctx context.Context, cfg Config) (*Clients, error) {
	base, err := restConfig(cfg.Master, cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	base.ContentType = runtime.ContentTypeProtobuf
	base.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clients := &Clients{}

	lease := rest.AddUserAgent(rest.CopyConfig(base), cfg.UserAgent+"/lease")
	lease.QPS, lease.Timeout = -1, cfg.LeaseTimeout
	if clients.Lease, err = kubernetes.NewForConfig(lease); err != nil {
		return nil, fmt.Errorf("making the lease client: %w", err)
	}
	if err := limit(ctx, cfg, base); err != nil {
		return nil, err
	}
	if cfg.MayWrite != nil {
		base.Wrap(func(next http.RoundTripper) http.RoundTripper { return gate{next: next, open: cfg.MayWrite} })
	}
	if clients.Work, err = kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(base), cfg.UserAgent)); err != nil {
		return nil, fmt.Errorf("making the client: %w", err)
	}
	if clients.Capacity, err = capacityLane(cfg, base, clients.Work); err != nil {
		return nil, err
	}
	untyped := rest.AddUserAgent(rest.CopyConfig(base), cfg.UserAgent)
	if clients.Dynamic, err = dynamic.NewForConfig(untyped); err != nil {
		return nil, fmt.Errorf("making the dynamic client: %w", err)
	}
	events := rest.AddUserAgent(rest.CopyConfig(base), cfg.UserAgent+"/events")
	events.QPS, events.Burst = fallbackQPS, fallbackBurst
	if clients.Events, err = kubernetes.NewForConfig(events); err != nil {
		return nil, fmt.Errorf("making the events client: %w", err)
	}
	return clients, nil
}

// capacityLane is a client with a limit of its own, where there is one.
func capacityLane(cfg Config, base *rest.Config, work kubernetes.Interface) (kubernetes.Interface, error) {
	if cfg.CapacityQPS == 0 {
		return work, nil
	}
	own := rest.AddUserAgent(rest.CopyConfig(base), cfg.UserAgent+"/capacity")
	own.QPS, own.Burst = cfg.CapacityQPS, cfg.CapacityBurst
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("making the capacity client: %w", err)
	}
	return client, nil
}

// restConfig explains a missing file better than the loader does.
func restConfig(master, path string) (*rest.Config, error) {
	switch {
	case path == "" && master != "":
		cfg, err := clientcmd.BuildConfigFromFlags(master, "")
		if err != nil {
			return nil, fmt.Errorf("reading --master=%s: %w", master, err)
		}
		return cfg, nil
	case path == "":
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the Pod's ServiceAccount: %w; outside a cluster give --kubeconfig", err)
		}
		return cfg, nil
	}
	if _, err := os.Stat(filepath.Clean(path)); err != nil {
		return nil, fmt.Errorf("reading --kubeconfig: %w", err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags(master, path)
	if err != nil {
		return nil, fmt.Errorf("reading --kubeconfig %s: %w", path, err)
	}
	return cfg, nil
}
