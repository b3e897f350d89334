package csiclient

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
)

const (
	// maxPages ends a list whose tokens never repeat and never end.
	maxPages = 10_000
	// minEntries is the smallest max_entries that an oversize reply is answered
	// with: smaller pages would not be the cure any more.
	minEntries = 16
	// maxTokenShown is how much of a token an error quotes, in bytes.
	maxTokenShown = 64
)

// fetch asks for one page and stores what it holds; it returns the next token.
type fetch func(ctx context.Context, token string, maxEntries int32) (next string, err error)

// pages walks a paged list to its end.
//
// A token that was seen before is an error: the driver goes round in circles.
// ABORTED says that the token has become invalid (CSI): the list starts again
// from the beginning, once. A reply over the receive limit is asked for again
// with half the entries.
func (c *Client) pages(ctx context.Context, get fetch, restart func()) error {
	token, restarted := "", false
	entries := int32(c.cfg.ListEntries)
	seen := map[string]struct{}{}
	for range maxPages {
		next, err := get(ctx, token, entries)
		var call *CallError
		errors.As(err, &call)
		switch {
		case err == nil && next == "":
			return nil
		case err == nil:
			if _, again := seen[next]; again {
				c.metrics.malformed.WithLabelValues(malformedToken).Inc()
				return fmt.Errorf("the driver repeats the page token %q", oneLine(next, maxTokenShown))
			}
			seen[next] = struct{}{}
			token = next
		case call != nil && call.oversize && entries/2 >= minEntries:
			entries /= 2
		case call != nil && call.Code == codes.Aborted && token != "" && !restarted:
			restart()
			token, restarted = "", true
			clear(seen)
		default:
			return fmt.Errorf("reading page %d: %w", len(seen)+1, err)
		}
	}
	c.metrics.malformed.WithLabelValues(malformedEndless).Inc()
	return fmt.Errorf("the driver's list does not end after %d pages", maxPages)
}
