package simctl

import (
	"context"
	"net/http"
	"net/url"
)

// Volumes are all that exist, by ID.
func (c *Client) Volumes(ctx context.Context) (all []Volume, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/volumes", nil, &all)
	return all, err
}

// Snapshots are all that exist, by ID.
func (c *Client) Snapshots(ctx context.Context) (all []Snapshot, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/snapshots", nil, &all)
	return all, err
}

// Limits are the limits of capacity that stand.
func (c *Client) Limits(ctx context.Context) (all []Limit, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/capacity", nil, &all)
	return all, err
}

// SetLimit replaces the limit of the same segments; one that limits nothing
// takes it away.
func (c *Client) SetLimit(ctx context.Context, limit Limit) error {
	return c.do(ctx, http.MethodPut, "/v1/capacity", limit, nil)
}

// Calls are the calls of a method to this process, of all that are about a
// volume or a snapshot if it is empty, in the order in which they arrived.
func (c *Client) Calls(ctx context.Context, method string) (all []Call, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/calls?method="+url.QueryEscape(method), nil, &all)
	return all, err
}

// Counts tells how often each method of this process was called.
func (c *Client) Counts(ctx context.Context) (counts Counts, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/calls/counts", nil, &counts)
	return counts, err
}

// Misbehave makes the controller break the contract of CSI from now on; the zero
// value makes it behave again.
func (c *Client) Misbehave(ctx context.Context, mode Misbehavior) error {
	return c.do(ctx, http.MethodPut, "/v1/misbehave", mode, nil)
}
