package journal

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// retryStart is the first pause after a write that failed for a while.
const retryStart = 50 * time.Millisecond

// Run writes what is put and removed, once the journal is open, until ctx ends,
// and then what is left, for as long as one request may take. It returns ErrTakenOver if another process
// holds the journal, nil otherwise.
func (j *Journal) Run(ctx context.Context) error {
	select {
	case <-j.opened:
	case <-ctx.Done():
	}
	select {
	case <-j.opened:
	default:
		j.close(errClosed)
		return nil
	}
	for j.await(ctx) {
		if err := j.write(ctx, j.next()); err != nil {
			j.close(err)
			return err
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.cfg.Timeout)
	defer cancel()
	err := j.write(last, j.next())
	j.close(errClosed)
	if errors.Is(err, ErrTakenOver) {
		return err
	}
	return nil
}

// await returns true when there is something to write, false at the end.
func (j *Journal) await(ctx context.Context) bool {
	var soon <-chan time.Time
	for {
		puts, removals := j.waiting()
		switch {
		case ctx.Err() != nil:
			return false
		case puts:
			return true
		case removals && soon == nil:
			timer := j.cfg.Clock.NewTimer(j.cfg.RemoveWithin)
			defer timer.Stop()
			soon = timer.C()
		}
		select {
		case <-ctx.Done():
			return false
		case <-soon:
			return true
		case <-j.wake:
		}
	}
}

// write carries out a batch page by page and answers those who wait. It returns
// an error only if nothing more may be written.
func (j *Journal) write(ctx context.Context, b batch) error {
	for _, c := range j.assign(b) {
		err := j.writePage(ctx, c.page, c.puts, b.removals)
		for _, p := range c.waiting {
			p.done <- err
		}
		if errors.Is(err, ErrTakenOver) {
			return err
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to write the journal", "records", len(c.puts))
		}
	}
	j.forgetUnknown(b)
	return nil
}

// forgetUnknown drops removals of records that are on no page.
func (j *Journal) forgetUnknown(b batch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for key := range b.removals {
		if _, known := j.where[key]; !known {
			delete(j.removals, key)
		}
	}
}

// change is what one page gets of a batch.
type change struct {
	page    *page
	puts    map[string]string
	waiting []*put
}

// assign spreads a batch over the pages: a record stays on its page, a new one
// goes to the first with room.
func (j *Journal) assign(b batch) []*change {
	byPage := map[*page]*change{}
	var changes []*change
	of := func(p *page) *change {
		if byPage[p] == nil {
			byPage[p] = &change{page: p, puts: map[string]string{}}
			changes = append(changes, byPage[p])
		}
		return byPage[p]
	}
	bytes := map[*page]int{}
	// A record may be on two pages: we put it on one, and an earlier holder began
	// the other with it. What stayed there would come up with each leader.
	for key := range b.removals {
		for _, p := range j.pages {
			if value, there := p.records[key]; there {
				of(p)
				bytes[p] -= recordBytes(key, value)
			}
		}
	}
	for _, w := range b.puts {
		p := j.where[w.key]
		if p == nil {
			p = j.room(bytes, recordBytes(w.key, w.value))
		}
		c := of(p)
		bytes[p] += recordBytes(w.key, w.value)
		c.puts[w.key] = w.value
		c.waiting = append(c.waiting, w)
	}
	return changes
}

// room finds a page for so many bytes more, or begins one.
func (j *Journal) room(change map[*page]int, bytes int) *page {
	next := 0
	for _, p := range j.pages {
		if p.bytes+change[p]+bytes <= j.cfg.PageBytes {
			return p
		}
		next = max(next, p.number+1)
	}
	p := &page{number: next, records: map[string]string{}}
	j.addPage(p)
	return p
}

// writePage writes a page until the cluster has it or refuses it, or for as long
// as one request may take: whoever waits is to hear of a server that fails on, and
// may come again. An answer that was lost shows as a conflict with ourselves.
func (j *Journal) writePage(ctx context.Context, p *page, puts map[string]string, removals map[string]bool) error {
	backoff := wait.Backoff{Duration: retryStart, Factor: 2, Jitter: 0.2, Steps: 1 << 20, Cap: j.cfg.RetryMax}
	began := j.cfg.Clock.Now()
	for {
		records := p.changed(puts, removals)
		cm, err := j.send(ctx, p, records)
		switch {
		case err == nil:
			j.written(p, cm, records)
			return nil
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && p.version != "":
			if err = j.adopt(ctx, p); err == nil {
				continue
			}
		}
		if errors.Is(err, ErrTakenOver) || refused(err) || ctx.Err() != nil || j.cfg.Clock.Since(began) >= j.cfg.Timeout {
			return j.explain("writing", j.pageName(p.number), err)
		}
		timer := j.cfg.Clock.NewTimer(backoff.Step())
		select {
		case <-ctx.Done():
			timer.Stop()
			return j.explain("writing", j.pageName(p.number), err)
		case <-timer.C():
		}
	}
}

// refused reports whether trying the same again is of no use for now: whoever
// waits is told, and may come again.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// adopt takes a page as it is in the cluster, with what an earlier holder wrote on
// it. What we wrote ourselves, with the answer lost, is put again by whoever
// waits for it. Our records stay, whoever took them out.
func (j *Journal) adopt(ctx context.Context, p *page) error {
	fresh, err := j.reread(ctx, p)
	if err != nil {
		return err
	}
	found := map[string]string{}
	for key, value := range fresh.records {
		if _, known := p.records[key]; !known && fresh.holder != j.holder {
			found[key] = value
		}
	}
	records := p.changed(found, nil)
	p.binary = fresh.binary
	j.written(p, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: fresh.version, UID: fresh.uid}}, records)
	if len(found) > 0 {
		j.cfg.Found(ctx, found)
	}
	return nil
}
