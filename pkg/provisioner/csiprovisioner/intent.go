package csiprovisioner

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
)

// intent is a CreateVolume that was begun, as the journal keeps it: all that is
// needed to make the same request again, and a PersistentVolume of its answer.
// Secrets are named, not kept.
type intent struct {
	// Claim is as much of the claim as is needed to refer to it.
	Claim v1.ObjectReference `json:"claim"`
	// Request is the whole request, but for the secrets.
	Request *csi.CreateVolumeRequest `json:"-"`
	// Secret is what the driver is to be called with.
	Secret *v1.SecretReference `json:"secret,omitempty"`
	// Source is what the volume is a copy of.
	Source *source.Ref `json:"source,omitempty"`
	// Volume is the PersistentVolume, as far as it is known before the answer.
	Volume *v1.PersistentVolume `json:"volume"`
	// Migrated: the volume is to be one of the in-tree plugin.
	Migrated bool `json:"migrated,omitempty"`
	// Topology: the answer tells where the volume can be used.
	Topology bool `json:"topology,omitempty"`

	// tried is true once a call may have made the volume.
	tried bool
}

// stored is the form of an intent in the journal.
type stored struct {
	*intent
	Request json.RawMessage `json:"request"`
}

func (in *intent) encode() (string, error) {
	request, err := protojson.Marshal(in.Request)
	if err != nil {
		return "", fmt.Errorf("encoding the request: %w", err)
	}
	record, err := json.Marshal(stored{intent: in, Request: request})
	if err != nil {
		return "", fmt.Errorf("encoding the intent: %w", err)
	}
	return string(record), nil
}

func decodeIntent(record string) (*intent, error) {
	s := stored{intent: &intent{}}
	if err := json.Unmarshal([]byte(record), &s); err != nil {
		return nil, fmt.Errorf("reading an intent: %w", err)
	}
	s.intent.Request = &csi.CreateVolumeRequest{}
	// A field that this version does not know is not dropped silently: the
	// request would not be the same.
	if err := protojson.Unmarshal(s.Request, s.intent.Request); err != nil {
		return nil, fmt.Errorf("reading the request of an intent: %w", err)
	}
	if s.Claim.UID == "" || s.Volume == nil || s.Volume.Spec.CSI == nil || s.intent.Request.Name == "" {
		return nil, fmt.Errorf("an intent for claim %s/%s lacks the claim's UID, the volume or its name", s.Claim.Namespace, s.Claim.Name)
	}
	return s.intent, nil
}

// claim is the claim of an intent that was read from the journal.
func (in *intent) claim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: in.Claim.Namespace, Name: in.Claim.Name, UID: in.Claim.UID, ResourceVersion: in.Claim.ResourceVersion,
		},
		Spec: v1.PersistentVolumeClaimSpec{VolumeMode: in.Volume.Spec.VolumeMode, AccessModes: in.Volume.Spec.AccessModes},
	}
}

// begin makes an intent durable.
func (p *Provisioner) begin(ctx context.Context, in *intent) error {
	record, err := in.encode()
	if err != nil {
		return err
	}
	if err := p.cfg.Journal.Put(ctx, string(in.Claim.UID), record); err != nil {
		return fmt.Errorf("writing down what is about to be created: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.intents[in.Claim.UID] = in
	return nil
}

// begun finds the intent of a claim.
func (p *Provisioner) begun(uid types.UID) *intent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.intents[uid]
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
	claims := p.takeUp(ctx, records)
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
		if s := in.Source; s != nil && s.Kind == ref.Kind && s.Namespace == ref.Namespace && s.Name == ref.Name {
			return true
		}
	}
	return false
}

// Found takes up records that an earlier leader wrote late. It is what the journal
// is to be given as Config.Found.
func (p *Provisioner) Found(ctx context.Context, records map[string]string) {
	claims := p.takeUp(ctx, records)
	p.mu.Lock()
	later := p.later
	p.mu.Unlock()
	for _, claim := range claims {
		later(claim)
	}
}

// takeUp remembers intents of the journal. One that cannot be read stays there,
// and is told of: it may be that of a newer version.
func (p *Provisioner) takeUp(ctx context.Context, records map[string]string) (claims []*v1.PersistentVolumeClaim) {
	for key, record := range records {
		in, err := decodeIntent(record)
		if err != nil {
			p.unreadable.Add(1)
			klog.FromContext(ctx).Error(err, "A record of the journal cannot be read and is kept; its volume may exist without a PersistentVolume: look for it at the driver by its name, and then delete the record", "key", key)
			continue
		}
		in.tried = true
		p.mu.Lock()
		p.intents[in.Claim.UID] = in
		p.mu.Unlock()
		if in.Source != nil {
			if err := p.cfg.Protect(ctx, *in.Source, in.Claim.UID); err != nil {
				klog.FromContext(ctx).Info("The source of a volume that was begun cannot be protected", "source", in.Source.String(), "reason", err.Error())
			}
		}
		claims = append(claims, in.claim())
	}
	return claims
}
