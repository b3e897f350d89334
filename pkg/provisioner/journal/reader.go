package journal

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// pagesAtOnce bounds a list of pages, each of which may be DefaultPageBytes large.
const pagesAtOnce = 50

// Reader reads what other processes have written, and writes nothing. It reads at
// the API server, so that what was acknowledged to any of them is seen.
type Reader struct {
	Client    kubernetes.Interface
	Namespace string
	// Name of a journal; those are read too whose name is this one, a dot and more.
	Name string
	// Except is the name of a journal that is left out: one's own.
	Except string
	// Timeout bounds one request. Zero takes the default.
	Timeout time.Duration
}

// Each shows each record, with the ConfigMap that it is in, until visit returns
// false. After an error it is not known what else there is.
func (r Reader) Each(ctx context.Context, visit func(configMap, record string) bool) error {
	next := ""
	for {
		list, err := r.list(ctx, next)
		if err != nil {
			return fmt.Errorf("reading the journals %s of other processes: %w", r.Name, err)
		}
		for i := range list.Items {
			cm := &list.Items[i]
			if !r.reads(cm.Name) {
				continue
			}
			for _, record := range cm.Data {
				if !visit(cm.Name, record) {
					return nil
				}
			}
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

func (r Reader) list(ctx context.Context, next string) (*v1.ConfigMapList, error) {
	timeout := r.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return r.Client.CoreV1().ConfigMaps(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: LabelJournal, Limit: pagesAtOnce, Continue: next})
}

// reads reports whether a ConfigMap is a page of a journal that is read.
func (r Reader) reads(configMap string) bool {
	i := strings.LastIndex(configMap, "-")
	if i < 0 {
		return false
	}
	// One whose number is none is read as well: what it says, if anything, is not
	// to be missed.
	of := configMap[:i]
	return of != r.Except && (of == r.Name || strings.HasPrefix(configMap, r.Name+"."))
}
