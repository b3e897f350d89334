// Package calls remembers what the simulated driver was asked, so that a test
// can tell how often, and whether a repeated request was the same.
package calls

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/utils/clock"
)

// kept is how many calls are remembered one by one; the counts go on.
const kept = 1 << 16

// Call is one call that arrived.
type Call struct {
	Method string    `json:"method"`
	Begun  time.Time `json:"begun"`
	// Name is that of CreateVolume and CreateSnapshot; Volume, Snapshot and Node
	// are IDs, where the request has them.
	Name     string `json:"name,omitempty"`
	Volume   string `json:"volume,omitempty"`
	Snapshot string `json:"snapshot,omitempty"`
	Node     string `json:"node,omitempty"`
	// SecretKeys are the keys of all secrets of the request, sorted. Their values
	// are kept nowhere.
	SecretKeys []string `json:"secretKeys,omitempty"`
	// Digest is the SHA-256 of the request without its secrets: equal requests
	// have the same.
	Digest string `json:"digest"`
	// Request is that request, as JSON of protobuf.
	Request json.RawMessage `json:"request,omitempty"`
	// Code is the gRPC code of the answer, such as "OK"; empty while there is none.
	Code string `json:"code,omitempty"`
}

// Counts are the calls so far by method.
type Counts map[string]int

// Recorder remembers the calls of one process. It is safe for concurrent use.
type Recorder struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	counts Counts
	first  int // the number of calls[0]
	calls  []Call
}

// NewRecorder makes an empty one.
func NewRecorder(c clock.PassiveClock) *Recorder {
	return &Recorder{clock: c, counts: Counts{}}
}

// Counts tells how often each method was called.
func (r *Recorder) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// Calls are those of a method, of all if it is empty, in the order in which they
// arrived. The oldest are forgotten beyond 65536. Only calls about a volume or a
// snapshot are told; the others are merely counted.
func (r *Recorder) Calls(method string) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := []Call{}
	for _, call := range r.calls {
		if method == "" || call.Method == method {
			found = append(found, call)
		}
	}
	return found
}

// Intercept is the server interceptor that remembers. It comes before those that
// make calls fail: what failed was asked all the same.
func (r *Recorder) Intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	number, told := r.begin(path.Base(info.FullMethod), request)
	response, err := handle(ctx, request)
	if told {
		r.end(number, status.Code(err).String())
	}
	return response, err
}

func (r *Recorder) begin(method string, request any) (number int, told bool) {
	call, told := describe(request)
	call.Method, call.Begun = method, r.clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[method]++
	if !told {
		return 0, false
	}
	if len(r.calls) >= kept {
		forgotten := kept / 4
		r.calls, r.first = slices.Delete(r.calls, 0, forgotten), r.first+forgotten
	}
	r.calls = append(r.calls, call)
	return r.first + len(r.calls) - 1, true
}

func (r *Recorder) end(number int, code string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := number - r.first; i >= 0 {
		r.calls[i].Code = code
	}
}

// describe tells what a request is about, and whether that is worth telling.
func describe(request any) (Call, bool) {
	message, ok := request.(proto.Message)
	if !ok {
		return Call{}, false
	}
	var call Call
	if named, ok := request.(interface{ GetName() string }); ok {
		call.Name = named.GetName()
	}
	if named, ok := request.(interface{ GetVolumeId() string }); ok {
		call.Volume = named.GetVolumeId()
	}
	if named, ok := request.(interface{ GetSourceVolumeId() string }); ok {
		call.Volume = named.GetSourceVolumeId()
	}
	if named, ok := request.(interface{ GetNodeId() string }); ok {
		call.Node = named.GetNodeId()
	}
	if named, ok := request.(interface{ GetSnapshotId() string }); ok {
		call.Snapshot = named.GetSnapshotId()
	}
	if call.Name == "" && call.Volume == "" && call.Snapshot == "" {
		return Call{}, false
	}
	open, keys := withoutSecrets(message)
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(open)
	if err != nil {
		return Call{}, false
	}
	sum := sha256.Sum256(content)
	call.SecretKeys, call.Digest = keys, hex.EncodeToString(sum[:])
	if call.Request, err = protojson.Marshal(open); err != nil {
		return Call{}, false
	}
	return call, true
}

// withoutSecrets copies a message without the fields that the specification
// marks as secret, and gives the sorted keys of these.
func withoutSecrets(message proto.Message) (proto.Message, []string) {
	open := proto.Clone(message)
	var keys []string
	reflected := open.ProtoReflect()
	reflected.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if secret, ok := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool); !ok || !secret {
			return true
		}
		if field.IsMap() {
			value.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				keys = append(keys, key.String())
				return true
			})
		}
		reflected.Clear(field)
		return true
	})
	slices.Sort(keys)
	return open, keys
}
