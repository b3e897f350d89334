package csiprovisioner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
)

// unread is a record of the journal that could not be read: it may be a newer
// version's. Its claim is left alone, since its volume may exist.
type unread struct {
	record string
	// claim is whose it is, as far as that can be read.
	claim v1.ObjectReference
	// source is what the volume may be a copy of; any: it may be of anything.
	source *source.Ref
	any    bool
}

func unreadOf(record string) unread {
	var s struct {
		Source *source.Ref `json:"source"`
	}
	err := json.Unmarshal([]byte(record), &s)
	// For people alone: as much of it as can be read.
	var c struct {
		Claim struct{ Namespace, Name string } `json:"claim"`
	}
	_ = json.Unmarshal([]byte(record), &c)
	return unread{
		record: record, claim: v1.ObjectReference{Namespace: c.Claim.Namespace, Name: c.Claim.Name}, source: s.Source, any: err != nil,
	}
}

// errBegunBefore: while an intent was written down, one of an earlier leader for
// the same claim came to light.
var errBegunBefore = errors.New("an earlier leader has begun the volume already: its request is gone on with")

// begin makes an intent durable.
func (p *Provisioner) begin(ctx context.Context, in *intent) error {
	in.Since = p.cfg.Clock.Now().UTC().Truncate(time.Second)
	record, err := in.encode()
	if err != nil {
		return err
	}
	in.state = StateWritten
	uid := in.Claim.UID
	if err := p.cfg.Journal.Put(ctx, string(uid), record); err != nil {
		return fmt.Errorf("writing down what is about to be created: %w", err)
	}
	p.mu.Lock()
	earlier, late := p.intents[uid]
	unread, mute := p.unreadable[uid]
	if !late && !mute {
		p.intents[uid] = in
	}
	p.mu.Unlock()
	switch {
	case late:
		if record, err = earlier.encode(); err != nil {
			return err
		}
	case mute:
		record = unread.record
	default:
		return nil
	}
	// Ours took its place.
	if err := p.cfg.Journal.Put(ctx, string(uid), record); err != nil {
		return fmt.Errorf("writing down again what an earlier leader has begun: %w", err)
	}
	return errBegunBefore
}

// begun finds the intent of a claim. The error tells that there is one that cannot
// be read.
func (p *Provisioner) begun(claim *v1.PersistentVolumeClaim) (*intent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, mute := p.unreadable[claim.UID]; mute {
		return nil, fmt.Errorf("the journal has a record of claim %s/%s that this version cannot read: the volume may exist already; run the version that wrote it, or look for the volume at the driver and, with all sidecars stopped, delete the key %s of the journal's ConfigMap", claim.Namespace, claim.Name, claim.UID)
	}
	return p.intents[claim.UID], nil
}

// BegunAs implements provisioner.DurableProvisioner.
func (p *Provisioner) BegunAs(uid types.UID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.intents[uid]; in != nil {
		return in.Request.Name
	}
	return ""
}

// Settle implements provisioner.DurableProvisioner.
func (p *Provisioner) Settle(uid types.UID) {
	p.mu.Lock()
	in := p.intents[uid]
	delete(p.intents, uid)
	p.mu.Unlock()
	if in == nil {
		return
	}
	p.cfg.Journal.Remove(string(uid))
	if in.Source != nil {
		p.cfg.Release(*in.Source, uid)
	}
}

// Begun implements provisioner.DurableProvisioner: it takes the journal over.
func (p *Provisioner) Begun(ctx context.Context, later func(*v1.PersistentVolumeClaim)) ([]*v1.PersistentVolumeClaim, error) {
	p.mu.Lock()
	p.later = later
	p.mu.Unlock()
	records, err := p.cfg.Journal.Open(ctx)
	if err != nil {
		return nil, err
	}
	odd := oddities{}
	p.setAside(ctx, p.cfg.Journal.Unread(), records, odd)
	claims := p.takeUp(ctx, records, odd)
	odd.tell(p.cfg.Recorder)
	p.mu.Lock()
	p.opened = true
	p.mu.Unlock()
	return claims, nil
}

// Needs reports whether a volume that was begun is a copy of the source. Before
// the journal is read every source may be needed.
func (p *Provisioner) Needs(ref source.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.opened {
		return true
	}
	for _, in := range p.intents {
		if isSource(in.Source, ref) {
			return true
		}
	}
	for _, u := range p.unreadable {
		if u.needs(ref) {
			return true
		}
	}
	return false
}

// RecordNeeds reports whether a record of the journal, of whatever process and
// version, is of a volume that may be a copy of the source.
func RecordNeeds(record string, ref source.Ref) bool { return unreadOf(record).needs(ref) }

func (u unread) needs(ref source.Ref) bool { return u.any || isSource(u.source, ref) }

// isSource leaves the UID out: a claim may name what was made anew.
func isSource(s *source.Ref, ref source.Ref) bool {
	return s != nil && s.Kind == ref.Kind && s.Namespace == ref.Namespace && s.Name == ref.Name
}

// Found takes up records that an earlier leader wrote late. It is what the journal
// is to be given as Config.Found, and does not block.
func (p *Provisioner) Found(ctx context.Context, records map[string]string) {
	odd := oddities{}
	claims := p.takeUp(ctx, records, odd)
	odd.tell(p.cfg.Recorder)
	p.mu.Lock()
	later := p.later
	p.mu.Unlock()
	for _, claim := range claims {
		later(claim)
	}
}

// takeUp remembers intents of the journal. One that cannot be read stays there,
// and is noted in odd. Their sources bear the finalizer already, and keep it since
// Needs speaks for them.
func (p *Provisioner) takeUp(ctx context.Context, records map[string]string, odd oddities) (claims []*v1.PersistentVolumeClaim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, record := range records {
		uid := types.UID(key)
		in, err := decodeIntent(key, record)
		if err != nil {
			p.unreadable[uid] = unreadOf(record)
			odd.add(p.cfg.Journal.Page(key), key)
			logUnread(ctx, err, key)
			continue
		}
		if p.intents[uid] != nil {
			// We are at it ourselves, with a request of the same name.
			continue
		}
		in.tried, in.state = true, StateInDoubt
		p.intents[uid] = in
		claims = append(claims, in.claim())
	}
	return claims
}
