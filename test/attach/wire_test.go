package attach

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

const (
	publish   = "ControllerPublishVolume"
	unpublish = "ControllerUnpublishVolume"
	list      = "ListVolumes"
)

// wire stands between a sidecar and the driver. It notes every call, and can
// answer what no gRPC server in Go would, such as a message that is not UTF-8.
type wire struct {
	socket  string
	server  http.Server
	backend http.Transport

	mu      sync.Mutex
	calls   []call
	changes map[string]func(*answer)
}

// call is one call to the driver; Ended is zero while it is in flight.
type call struct {
	Method, Volume, Node string
	Began, Ended         time.Time
	Code                 codes.Code
}

// answer is what the driver said, to be changed at will.
type answer struct {
	Method, Volume string
	// Request and Reply are messages without their frame.
	Request, Reply []byte
	Code           codes.Code
	Message        string
}

func newWire(socket, driver string) (*wire, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	w := &wire{socket: socket, changes: map[string]func(*answer){}}
	var plain http.Protocols
	plain.SetUnencryptedHTTP2(true)
	w.server.Handler, w.server.Protocols = w, &plain
	w.backend.Protocols = &plain
	w.backend.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", driver)
	}
	go func() { _ = w.server.Serve(listener) }() // until close
	return w, nil
}

func (w *wire) close() {
	_ = w.server.Close()
	w.backend.CloseIdleConnections()
}

// change changes what is answered until undone.
func (w *wire) change(name string, f func(*answer)) (undo func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes[name] = f
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.changes, name)
	}
}

// of lists the calls so far of a method for a volume; an empty one is any.
func (w *wire) of(method, volume string) (found []call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if (method == "" || c.Method == method) && (volume == "" || c.Volume == volume) {
			found = append(found, c)
		}
	}
	return found
}

// story is the calls for a volume as text: "publish node-1, unpublish node-1".
func (w *wire) story(volume string) string {
	var words []string
	for _, c := range w.of("", volume) {
		words = append(words, strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(c.Method, "Controller"), "Volume"))+" "+c.Node)
	}
	return strings.Join(words, ", ")
}

// ServeHTTP carries one unary call over.
func (w *wire) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller is gone
	}
	a := &answer{Method: path.Base(r.URL.Path), Request: unframe(body)}
	done := w.note(a)
	if err := w.ask(r, body, a); err != nil {
		a.Code, a.Message = codes.Unavailable, err.Error()
	}
	w.mu.Lock()
	for _, change := range w.changes {
		change(a)
	}
	w.mu.Unlock()
	done(a.Code)
	h := rw.Header()
	h.Set("Content-Type", "application/grpc")
	rw.WriteHeader(http.StatusOK)
	if a.Code == codes.OK {
		_, _ = rw.Write(frame(a.Reply)) // the caller may be gone
	}
	h.Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(int(a.Code)))
	h.Set(http.TrailerPrefix+"Grpc-Message", escape(a.Message))
}

// note begins to note a call.
func (w *wire) note(a *answer) (done func(codes.Code)) {
	c := call{Method: a.Method, Began: time.Now()}
	switch a.Method {
	case publish:
		var m csi.ControllerPublishVolumeRequest
		if proto.Unmarshal(a.Request, &m) == nil {
			c.Volume, c.Node = m.VolumeId, m.NodeId
		}
	case unpublish:
		var m csi.ControllerUnpublishVolumeRequest
		if proto.Unmarshal(a.Request, &m) == nil {
			c.Volume, c.Node = m.VolumeId, m.NodeId
		}
	}
	a.Volume = c.Volume
	w.mu.Lock()
	defer w.mu.Unlock()
	i := len(w.calls)
	w.calls = append(w.calls, c)
	return func(code codes.Code) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls[i].Ended, w.calls[i].Code = time.Now(), code
	}
}

// ask passes the call on and reads the answer.
func (w *wire) ask(r *http.Request, body []byte, a *answer) error {
	out := r.Clone(r.Context())
	out.URL, out.RequestURI = &url.URL{Scheme: "http", Host: "driver", Path: r.URL.Path}, ""
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res, err := w.backend.RoundTrip(out)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	reply, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	// An answer without a message has its status in the header.
	status := res.Trailer
	if res.Header.Get("Grpc-Status") != "" {
		status = res.Header
	}
	code, err := strconv.Atoi(status.Get("Grpc-Status"))
	if err != nil {
		return fmt.Errorf("the driver answered no status: %w", err)
	}
	a.Code, a.Reply = codes.Code(code), unframe(reply)
	a.Message, err = url.PathUnescape(status.Get("Grpc-Message"))
	return err
}

// A message has a byte that says whether it is compressed, which none is here,
// and its length before it.
const frameHead = 5

func unframe(b []byte) []byte { return b[min(frameHead, len(b)):] }

func frame(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

// escape writes a status message as gRPC does, but lets through any byte.
func escape(message string) string {
	var b strings.Builder
	for _, c := range []byte(message) {
		if c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// edit changes the reply as a message of its type.
func edit[M proto.Message](a *answer, m M, f func(M)) {
	err := proto.Unmarshal(a.Reply, m)
	if err == nil {
		f(m)
		a.Reply, err = proto.Marshal(m)
	}
	if err != nil {
		a.Code, a.Message = codes.Internal, errors.Join(errors.New("changing the reply"), err).Error()
	}
}
