package csiprovisioner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
)

// unreadAdvice is what to do about a record that cannot be read.
const unreadAdvice = "run the version that wrote it, or look for the volume at the driver and, with all sidecars stopped, delete the key"

func logUnread(ctx context.Context, err error, key string) {
	klog.FromContext(ctx).Error(err, "A record of the journal cannot be read and is kept; its claim is left alone, for the volume may exist: "+unreadAdvice, "key", key)
}

// setAside remembers what the journal could not read, and notes it in odd. What it could read under the
// same key, on a page as we write them, counts for more.
func (p *Provisioner) setAside(ctx context.Context, found []journal.Unread, records map[string]string, odd oddities) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range found {
		if _, known := records[u.Key]; known {
			continue
		}
		// It may be a copy of anything.
		p.unreadable[types.UID(u.Key)] = unread{any: true}
		odd.add(&u.ConfigMap, u.Key)
		logUnread(ctx, fmt.Errorf("ConfigMap %s/%s: %w", u.ConfigMap.Namespace, u.ConfigMap.Name, errors.New(u.Why)), u.Key)
	}
}

// oddities are keys that could not be read, by their ConfigMap.
type oddities map[v1.ObjectReference][]string

func (o oddities) add(page *v1.ObjectReference, key string) {
	if page != nil {
		o[*page] = append(o[*page], key)
	}
}

// tell says so by one event for each ConfigMap. Nothing of a record is in it.
func (o oddities) tell(recorder record.EventRecorder) {
	pages := slices.SortedFunc(maps.Keys(o), compareNames)
	for _, page := range pages {
		keys := o[page]
		slices.Sort(keys)
		recorder.Eventf(&page, v1.EventTypeWarning, provisioner.ReasonJournalUnreadable,
			"Records that this version cannot read, and that are kept: %d, the first under the key %s. Their claims are left alone, for the volumes may exist: for each, %s", len(keys), keys[0], unreadAdvice)
	}
}

// register registers the metrics; a nil registry has none.
func (p *Provisioner) register(r metrics.KubeRegistry) error {
	if r == nil {
		return nil
	}
	return r.CustomRegister(&collector{p: p, unread: metrics.NewDesc("ha_sidecar_provisioner_journal_unreadable_records",
		"Records of the journal that this version cannot read: they are kept, and their claims left alone.", nil, nil, metrics.ALPHA, "")})
}

// collector counts when it is scraped.
type collector struct {
	metrics.BaseStableCollector
	p      *Provisioner
	unread *metrics.Desc
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) { ch <- c.unread }

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	ch <- metrics.NewLazyConstMetric(c.unread, metrics.GaugeValue, float64(len(c.p.unreadable)))
}
