package nodectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
)

// Client talks to the control socket of one node.
type Client struct {
	http *http.Client
	path string
}

// New returns a client for a socket, given as unix:///path or as a path.
func New(endpoint string) *Client {
	path := SocketPath(endpoint)
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}}
}

// SocketPath strips the scheme of a unix endpoint.
func SocketPath(endpoint string) string {
	return strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
}

// Inject switches a fault on. For Crash and PowerOff, the end of the agent is
// the success.
func (c *Client) Inject(ctx context.Context, fault Fault) error {
	err := c.do(ctx, http.MethodPost, "/v1/faults/"+string(fault), nil)
	if died := fault == Crash || fault == PowerOff; died && lostConnection(err) {
		return nil
	}
	return err
}

// Release switches faults off; without any named, all.
func (c *Client) Release(ctx context.Context, faults ...Fault) error {
	if len(faults) == 0 {
		return c.do(ctx, http.MethodDelete, "/v1/faults", nil)
	}
	for _, f := range faults {
		if err := c.do(ctx, http.MethodDelete, "/v1/faults/"+string(f), nil); err != nil {
			return err
		}
	}
	return nil
}

// Status asks the node.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var out Status
	return out, c.do(ctx, http.MethodGet, "/v1/status", &out)
}

func (c *Client) do(ctx context.Context, method, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("asking the node at %s: %w", c.path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.path, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s", method, path, strings.TrimSpace(string(body)))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("decoding the answer of %s: %w", c.path, err)
	}
	return nil
}

func lostConnection(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}
