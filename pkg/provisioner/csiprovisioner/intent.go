package csiprovisioner

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// SelectedNode is the node that the request is for, or empty.
	SelectedNode string `json:"selectedNode,omitempty"`

	// Since is when it was begun, by the clock of the process that did. Records of
	// before there was this field do not tell.
	Since time.Time `json:"since,omitzero"`

	// state is for people; it is guarded by Provisioner.mu once others know of the
	// intent.
	state State
	// tried is true once a call may have made the volume. It belongs to who works
	// on the claim.
	tried bool
}

const (
	// packFrom is the size from which a request is kept packed. Those with the
	// topology of thousands of nodes would fill a page of the journal each, and
	// say much the same many times.
	packFrom = 4 << 10
	// maxRequest bounds a request that is unpacked.
	maxRequest = 64 << 20
)

// stored is the form of an intent in the journal. Of the requests there is one.
type stored struct {
	*intent
	Request json.RawMessage `json:"request,omitempty"`
	// Packed is the request by gzip.
	Packed []byte `json:"packedRequest,omitempty"`
}

func (in *intent) encode() (string, error) {
	request, err := protojson.Marshal(in.Request)
	if err != nil {
		return "", fmt.Errorf("encoding the request: %w", err)
	}
	s := stored{intent: in, Request: request}
	if len(request) >= packFrom {
		if s.Packed, err = pack(request); err != nil {
			return "", err
		}
		s.Request = nil
	}
	record, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encoding the intent: %w", err)
	}
	return string(record), nil
}

func pack(data []byte) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("packing a request: %w", err)
	}
	return packed.Bytes(), nil
}

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpacking the request of an intent: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxRequest+1))
	if err != nil {
		return nil, fmt.Errorf("unpacking the request of an intent: %w", err)
	}
	if len(data) > maxRequest {
		return nil, fmt.Errorf("the request of an intent has more than %d bytes", maxRequest)
	}
	return data, nil
}

// decodeIntent reads the record with that key. What this version does not know is
// not dropped silently: the request, or the volume, would be another one.
func decodeIntent(key, record string) (*intent, error) {
	s := stored{intent: &intent{}}
	d := json.NewDecoder(bytes.NewReader([]byte(record)))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("reading an intent: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("reading an intent: there is something after it")
	}
	request := []byte(s.Request)
	if len(s.Packed) > 0 {
		var err error
		if request, err = unpack(s.Packed); err != nil {
			return nil, err
		}
	}
	s.intent.Request = &csi.CreateVolumeRequest{}
	if err := protojson.Unmarshal(request, s.intent.Request); err != nil {
		// The library quotes what it does not understand, which may be any value.
		return nil, errors.New("reading the request of an intent: it is no CreateVolumeRequest of the CSI version that this version knows")
	}
	switch {
	case string(s.Claim.UID) != key:
		return nil, fmt.Errorf("an intent for claim %s/%s has the UID %q, and its key is another", s.Claim.Namespace, s.Claim.Name, s.Claim.UID)
	case key == "" || s.Volume == nil || s.Volume.Spec.CSI == nil || s.intent.Request.Name == "":
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
		Spec: v1.PersistentVolumeClaimSpec{
			VolumeMode: in.Volume.Spec.VolumeMode, AccessModes: in.Volume.Spec.AccessModes, StorageClassName: &in.Volume.Spec.StorageClassName,
		},
	}
}
