// Package simctl talks to the control socket of a process of the simulated
// driver: it makes paths and calls fail, sets health, and tells who has what.
package simctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/calls"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/control"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fault"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// The things that are told and asked for.
type (
	Fault       = fault.Fault
	FaultStatus = fault.Status
	Duration    = fault.Duration
	Condition   = state.Condition
	Publication = state.Publication
	Entry       = state.Entry
	Info        = control.Info
	Volume      = state.Volume
	Snapshot    = state.Snapshot
	Limit       = state.Limit
	Segments    = state.Segments
	Call        = calls.Call
	Counts      = calls.Counts
	Misbehavior = misbehave.Mode
)

// Client is safe for concurrent use.
type Client struct{ http *http.Client }

// Dial makes a client for the control socket at that path, with or without
// unix://. It does not connect yet.
func Dial(socket string) (*Client, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(socket, "unix:"), "//")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("control socket %q has no absolute path", socket)
	}
	return &Client{http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}}, nil
}

// Direct makes a client for a handler in this process, without a socket.
func Direct(handler http.Handler) *Client {
	return &Client{http: &http.Client{Transport: direct{handler}}}
}

type direct struct{ handler http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r = r.Clone(r.Context())
		r.Body = http.NoBody
	}
	answer := &memory{header: http.Header{}, code: http.StatusOK}
	d.handler.ServeHTTP(answer, r)
	return &http.Response{
		Status:     http.StatusText(answer.code),
		StatusCode: answer.code,
		Header:     answer.header,
		Body:       io.NopCloser(&answer.body),
		Request:    r,
	}, nil
}

// memory keeps the answer of a handler.
type memory struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (m *memory) Header() http.Header               { return m.header }
func (m *memory) WriteHeader(code int)              { m.code = code }
func (m *memory) Write(content []byte) (int, error) { return m.body.Write(content) }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Info tells about the process.
func (c *Client) Info(ctx context.Context) (info Info, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/info", nil, &info)
	return info, err
}

// CreateVolume makes a volume of that name, of that many bytes, or finds it, and
// gives its ID.
func (c *Client) CreateVolume(ctx context.Context, name string, capacity int64) (string, error) {
	var id control.ID
	err := c.do(ctx, http.MethodPost, "/v1/volumes", control.NewVolume{Name: name, Capacity: capacity}, &id)
	return id.ID, err
}

// FailPath makes every operation of a node on a volume fail with EIO, also
// through files that are open. When it returns nil, none is in flight.
func (c *Client) FailPath(ctx context.Context, volume, node string) error {
	return c.do(ctx, http.MethodPost, "/v1/paths/fail", control.Path{Volume: volume, Node: node}, nil)
}

// HealPath undoes FailPath. It does not undo ControllerUnpublishVolume.
func (c *Client) HealPath(ctx context.Context, volume, node string) error {
	return c.do(ctx, http.MethodPost, "/v1/paths/heal", control.Path{Volume: volume, Node: node}, nil)
}

// SetHealth says what is wrong with a volume as that node sees it, or as the
// controller does if node is empty. Without conditions it is healthy again.
func (c *Client) SetHealth(ctx context.Context, volume, node string, conditions ...Condition) error {
	if volume == "" {
		return errors.New("setting health: the volume is missing")
	}
	return c.do(ctx, http.MethodPut, "/v1/health", control.Health{Volume: volume, Node: node, Conditions: conditions}, nil)
}

// SetStorageHealth says what is wrong with the storage of a node as a whole.
func (c *Client) SetStorageHealth(ctx context.Context, node string, conditions ...Condition) error {
	return c.do(ctx, http.MethodPut, "/v1/health", control.Health{Node: node, Conditions: conditions}, nil)
}

// Inject makes calls to this process go wrong, and gives the fault's ID.
func (c *Client) Inject(ctx context.Context, f Fault) (string, error) {
	var id control.ID
	err := c.do(ctx, http.MethodPost, "/v1/faults", f, &id)
	return id.ID, err
}

// Faults are all that were injected and not cleared.
func (c *Client) Faults(ctx context.Context) (all []FaultStatus, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/faults", nil, &all)
	return all, err
}

// AwaitHits waits until a fault has happened to at least so many calls.
func (c *Client) AwaitHits(ctx context.Context, id string, hits int) (now FaultStatus, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/faults/"+url.PathEscape(id)+"?hits="+strconv.Itoa(hits), nil, &now)
	return now, err
}

// Release lets the calls go on that a fault hangs or delays; it hangs no more.
func (c *Client) Release(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, "/v1/faults/"+url.PathEscape(id)+"/released", nil, nil)
}

// Clear takes away those faults, without IDs all, and lets their calls go on.
func (c *Client) Clear(ctx context.Context, ids ...string) error {
	if len(ids) == 0 {
		return c.do(ctx, http.MethodDelete, "/v1/faults", nil, nil)
	}
	for _, id := range ids {
		if err := c.do(ctx, http.MethodDelete, "/v1/faults/"+url.PathEscape(id), nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// DropSocket takes the CSI socket of this process away for so long, with all
// connections. When it returns nil, the socket is gone.
func (c *Client) DropSocket(ctx context.Context, duration time.Duration) error {
	return c.do(ctx, http.MethodPost, "/v1/socket/drop", control.Drop{Duration: Duration(duration)}, nil)
}

// Publications are all that stand now.
func (c *Client) Publications(ctx context.Context) (all []Publication, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/publications", nil, &all)
	return all, err
}

// Ledger is every effect so far, in order.
func (c *Client) Ledger(ctx context.Context) (all []Entry, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/ledger", nil, &all)
	return all, err
}

// do sends a request and reads the answer into result, unless that is nil.
func (c *Client) do(ctx context.Context, method, path string, body, result any) error {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://simdriver"+path, content)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("asking the driver: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("reading the driver's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var failed control.Error
		if json.Unmarshal(answer, &failed) == nil && failed.Error != "" {
			return errors.New(failed.Error)
		}
		return fmt.Errorf("the driver answered %s: %s", response.Status, bytes.TrimSpace(answer))
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(answer, result); err != nil {
		return fmt.Errorf("reading the driver's answer: %w", err)
	}
	return nil
}
