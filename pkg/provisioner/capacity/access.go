package capacity

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// maxRest bounds how long a verb that was refused is left alone: a permission that
// was granted is to be noticed soon.
const maxRest = time.Minute

// access knows which verbs the API server refuses us, for want of a permission
// or of the resource. A write that was refused is left alone for a while, so
// that not each item asks the driver for something that nobody will read.
type access struct {
	clock      clock.PassiveClock
	start, max time.Duration
	namespace  string
	logger     klog.Logger
	report     func(error)

	mu      sync.Mutex
	refused map[string]refusal
	// waiting are the items that need a verb which was refused.
	waiting map[string]map[item]bool
	// telling serializes reports, so that the last one is true.
	telling sync.Mutex
}

type refusal struct {
	err   error
	rest  time.Duration
	until time.Time
}

func newAccess(cfg Config) *access {
	return &access{
		clock: cfg.Clock, start: cfg.RetryIntervalStart, max: max(cfg.RetryIntervalStart, min(cfg.RetryIntervalMax, maxRest)),
		namespace: cfg.Namespace, report: cfg.Report, logger: klog.Background(),
		refused: map[string]refusal{}, waiting: map[string]map[item]bool{},
	}
}

// refused reports whether the API server has neither permission nor resource for us.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}

// saw takes the result of a request. It returns whether it was refused.
func (a *access) saw(verb string, err error) bool {
	// A delete or a patch finds nothing where the object is gone.
	missing := apierrors.IsNotFound(err) && verb != "delete" && verb != "patch"
	is := refused(err) && (missing || !apierrors.IsNotFound(err))
	if err != nil && !is {
		return false
	}
	a.telling.Lock()
	defer a.telling.Unlock()
	a.mu.Lock()
	was, before := a.refused[verb]
	if is {
		was.rest = min(max(was.rest*2, a.start), a.max)
		was.until = a.clock.Now().Add(was.rest)
		was.err = a.explain(verb, err, missing)
		a.refused[verb] = was
	} else {
		delete(a.refused, verb)
	}
	now := a.errLocked()
	a.mu.Unlock()
	if before == is {
		return is
	}
	switch {
	case is:
		a.logger.Error(now, "The scheduler is not told of free capacity")
	case now != nil:
		// The rest has been told of.
		a.logger.Info("The API server allows more again", "verb", verb)
		return is
	default:
		a.logger.Info("The scheduler is told of free capacity again")
	}
	a.report(now)
	return is
}

// waits notes that an item needs a verb which was refused.
func (a *access) waits(it item, verb string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting[verb] == nil {
		a.waiting[verb] = map[item]bool{}
	}
	a.waiting[verb][it] = true
}

// needsNothing notes that an item is as it should be. A verb that no item needs any
// more is not missing, whatever the server would say to it.
func (a *access) needsNothing(it item) {
	a.telling.Lock()
	defer a.telling.Unlock()
	a.mu.Lock()
	over := false
	for verb, items := range a.waiting {
		if !items[it] {
			continue
		}
		delete(items, it)
		if _, was := a.refused[verb]; was && len(items) == 0 {
			delete(a.refused, verb)
			over = true
		}
	}
	now := a.errLocked()
	a.mu.Unlock()
	if over {
		a.logger.Info("Nothing needs any more what the API server refused")
		a.report(now)
	}
}

// explain says what is wrong, and what to do.
func (a *access) explain(verb string, err error, missing bool) error {
	if missing {
		return fmt.Errorf("the API server does not know CSIStorageCapacity of storage.k8s.io/v1, or there is no namespace %s (%s): Kubernetes 1.24 or later has it; switch capacity off where it is missing: %w", a.namespace, verb, err)
	}
	return fmt.Errorf("may not %s csistoragecapacities of storage.k8s.io in namespace %s: grant get, list, watch, create, update, patch and delete to this service account by a Role, if it is not a quota or a namespace that is being deleted: %w", verb, a.namespace, err)
}

// rest is how long a verb is still to be left alone.
func (a *access) rest(verb string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.refused[verb]
	if !ok {
		return 0
	}
	return r.until.Sub(a.clock.Now())
}

// errLocked is all that is refused, or nil. The caller holds mu.
func (a *access) errLocked() error {
	var errs []error
	for _, verb := range a.verbsLocked() {
		errs = append(errs, a.refused[verb].err)
	}
	return errors.Join(errs...)
}

func (a *access) verbsLocked() []string {
	var verbs []string
	for verb := range a.refused {
		verbs = append(verbs, verb)
	}
	slices.Sort(verbs)
	return verbs
}

// verbs returns the verbs that are refused, sorted.
func (a *access) verbs() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.verbsLocked()
}
