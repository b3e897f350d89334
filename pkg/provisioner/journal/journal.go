package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Errors of a Journal.
var (
	// ErrTakenOver: another process has opened the journal since. Nothing more is
	// written.
	ErrTakenOver = errors.New("another process has taken the journal over")
	// ErrTooLarge: the record does not fit into a page.
	ErrTooLarge = errors.New("the record is larger than a page of the journal")
	// errClosed: Run has ended.
	errClosed = errors.New("the journal is closed")
)

// Journal is a set of records by key. Open comes first, then Run beside the rest.
type Journal struct {
	cfg    Config
	holder string
	// epoch and pages belong to Open, then to Run, which read them without mu and
	// change them with it.
	epoch int64
	pages []*page
	// opened is closed by Open.
	opened   chan struct{}
	openOnce sync.Once

	mu       sync.Mutex
	puts     []*put
	removals map[string]bool
	closed   error
	// where says which page a record is on, once it was written.
	where map[string]*page
	// unread is what Open could not read.
	unread []Unread
	wake   chan struct{}
}

// put is a record that waits to be written.
type put struct {
	key, value string
	done       chan error
}

// New checks the configuration; it reads and writes nothing yet.
func New(cfg Config) (*Journal, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Journal{
		cfg: cfg, holder: uuid.NewString(), removals: map[string]bool{}, where: map[string]*page{}, wake: make(chan struct{}, 1),
		opened: make(chan struct{}),
	}, nil
}

// Put makes a record durable. With a nil error it is in the cluster; with any
// other it may be, until its page is written next. A key is put once until it is removed;
// its value does not change.
func (j *Journal) Put(ctx context.Context, key, value string) error {
	if problems := validation.IsConfigMapKey(key); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the key of a record: %s", key, problems[0])
	}
	if size := recordBytes(key, value); size > j.cfg.PageBytes {
		return fmt.Errorf("%w: %d bytes of %d", ErrTooLarge, size, j.cfg.PageBytes)
	}
	p := &put{key: key, value: value, done: make(chan error, 1)}
	j.mu.Lock()
	if j.closed != nil {
		j.mu.Unlock()
		return j.closed
	}
	delete(j.removals, key)
	j.puts = append(j.puts, p)
	j.mu.Unlock()
	j.signal()
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		j.Remove(key)
		return context.Cause(ctx)
	}
}

// Remove takes a record out. It returns at once and is written with the next
// batch, or within Config.RemoveWithin.
func (j *Journal) Remove(key string) {
	j.mu.Lock()
	j.removals[key] = true
	j.mu.Unlock()
	j.signal()
}

// Records is a copy of what the cluster holds, as far as it was acknowledged.
func (j *Journal) Records() map[string]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	records := make(map[string]string, len(j.where))
	for key, p := range j.where {
		if !j.removals[key] {
			records[key] = p.records[key]
		}
	}
	return records
}

func (j *Journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// batch is what one round of writes is to bring about.
type batch struct {
	puts     []*put
	removals map[string]bool
}

// next takes what has gathered.
func (j *Journal) next() batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := batch{puts: j.puts, removals: maps.Clone(j.removals)}
	j.puts = nil
	return b
}

// waiting reports whether there are records to put, and removals.
func (j *Journal) waiting() (puts, removals bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.puts) > 0, len(j.removals) > 0
}

// close refuses everything from now on.
func (j *Journal) close(err error) {
	j.mu.Lock()
	puts := j.puts
	j.puts, j.closed = nil, err
	j.mu.Unlock()
	for _, p := range puts {
		p.done <- err
	}
}

// begin notes the epoch that we write under, before any page is taken.
func (j *Journal) begin(epoch int64, unread []Unread) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.epoch, j.pages, j.unread = epoch, nil, unread
}

func (j *Journal) addPage(p *page) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pages = append(j.pages, p)
}

// written notes what a page holds now, and which ConfigMap it is.
func (j *Journal) written(p *page, cm *v1.ConfigMap, records map[string]string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	before := p.records
	p.version, p.uid = cm.ResourceVersion, cm.UID
	p.hold(records)
	for key := range before {
		if _, stays := records[key]; stays {
			continue
		}
		if other := j.holding(key); other != nil {
			j.where[key] = other
			continue
		}
		delete(j.where, key)
		delete(j.removals, key)
	}
	for key := range records {
		j.where[key] = p
	}
}

// holding finds a page that holds a record; nil: there is none.
func (j *Journal) holding(key string) *page {
	for _, p := range j.pages {
		if _, there := p.records[key]; there {
			return p
		}
	}
	return nil
}
