package journal

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
)

// Open takes the journal over: it reads all pages, and writes each under a new
// epoch. It returns the records. It is to be called when the lease is held, and
// gives up on the first error; it may be called again then.
func (j *Journal) Open(ctx context.Context) (map[string]string, error) {
	selector := labels.SelectorFromSet(labels.Set{LabelJournal: labelValue(j.cfg.Name)})
	list, err := j.cfg.Client.CoreV1().ConfigMaps(j.cfg.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, j.explain("reading", j.cfg.Name, err)
	}
	pages := map[int]*page{}
	epoch := int64(0)
	var unread []Unread
	for i := range list.Items {
		cm := &list.Items[i]
		number, ok := j.pageNumber(cm.Name)
		unread = append(unread, unreadOn(cm, !ok)...)
		if !ok {
			continue
		}
		epoch = max(epoch, epochOf(cm))
		pages[number] = pageOf(number, cm)
	}
	// The first page holds the epoch, and so is always there.
	if pages[0] == nil {
		pages[0] = &page{}
	}
	slices.SortFunc(unread, func(a, b Unread) int {
		return cmp.Or(cmp.Compare(a.ConfigMap.Name, b.ConfigMap.Name), cmp.Compare(a.Key, b.Key))
	})
	j.begin(epoch+1, unread)
	for _, number := range slices.Sorted(maps.Keys(pages)) {
		p := pages[number]
		j.addPage(p)
		if err := j.take(ctx, p); err != nil {
			return nil, err
		}
	}
	j.openOnce.Do(func() { close(j.opened) })
	return j.Records(), nil
}

func pageOf(number int, cm *v1.ConfigMap) *page {
	p := &page{number: number, version: cm.ResourceVersion, uid: cm.UID, holder: cm.Annotations[AnnotationHolder], binary: cm.BinaryData}
	p.hold(cm.Data)
	return p
}

// take writes a page under our epoch. An earlier holder may still write to it
// meanwhile: what it wrote is taken too.
func (j *Journal) take(ctx context.Context, p *page) error {
	for {
		cm, err := j.send(ctx, p, p.records)
		switch {
		case err == nil:
			j.written(p, cm, p.records)
			return nil
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return j.explain("writing", j.pageName(p.number), err)
		}
		fresh, err := j.reread(ctx, p)
		if err != nil {
			return err
		}
		p.version, p.binary = fresh.version, fresh.binary
		p.hold(fresh.records)
	}
}

// reread reads a page that is not as we thought. One that is gone has no version
// and, as far as the cluster goes, no records.
func (j *Journal) reread(ctx context.Context, p *page) (*page, error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	cm, err := j.cfg.Client.CoreV1().ConfigMaps(j.cfg.Namespace).Get(ctx, j.pageName(p.number), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		klog.FromContext(ctx).Info("A page of the journal was deleted, and is made again", "configMap", klog.KRef(j.cfg.Namespace, j.pageName(p.number)), "records", len(p.records))
		return &page{number: p.number, records: p.records, binary: p.binary}, nil
	case err != nil:
		return nil, j.explain("reading", j.pageName(p.number), err)
	case epochOf(cm) > j.epoch:
		return nil, fmt.Errorf("%w: ConfigMap %s/%s has epoch %d, ours is %d", ErrTakenOver, cm.Namespace, cm.Name, epochOf(cm), j.epoch)
	}
	return pageOf(p.number, cm), nil
}

// send creates or updates a page and returns it as it is then.
func (j *Journal) send(ctx context.Context, p *page, records map[string]string) (*v1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	pages := j.cfg.Client.CoreV1().ConfigMaps(j.cfg.Namespace)
	cm := j.configMap(p, records)
	var err error
	if p.version == "" {
		cm, err = pages.Create(ctx, cm, metav1.CreateOptions{})
	} else {
		cm, err = pages.Update(ctx, cm, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, err
	}
	return cm, nil
}

// explain says what to do about an error of the API server.
func (j *Journal) explain(doing, name string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s the journal, ConfigMap %s/%s: %w; allow get, list, create and update of configmaps there", doing, j.cfg.Namespace, name, err)
	}
	return fmt.Errorf("%s the journal, ConfigMap %s/%s: %w", doing, j.cfg.Namespace, name, err)
}
