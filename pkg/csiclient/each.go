package csiclient

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// maxFailuresInRow ends a sweep that asks volume by volume: a driver that hangs
// would otherwise cost a deadline for each of them.
const maxFailuresInRow = 10

var errNoAnswer = errors.New("the reply says nothing usable about the volume")

// tally keeps count of a sweep that asks volume by volume.
type tally struct {
	mu     sync.Mutex
	failed int
	inRow  int
	first  error
	stop   error
}

// note takes the result for one volume. unsupported turns UNIMPLEMENTED into
// the error that ends the sweep.
func (t *tally) note(err error, unsupported func(error) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var call *CallError
	isCall := errors.As(err, &call)
	if err == nil || isCall && call.Code == codes.NotFound {
		// A volume that the driver does not know has no health: no reading,
		// and nothing missing either.
		t.inRow = 0
		return
	}
	t.failed++
	if t.first == nil {
		t.first = err
	}
	switch {
	case !isCall:
		t.inRow = 0
	case call.Code == codes.Unimplemented:
		t.stop = unsupported(err)
	case !call.Sent:
		t.stop = err
	case call.Code == codes.DeadlineExceeded || call.Code == codes.Unavailable:
		if t.inRow++; t.inRow >= maxFailuresInRow {
			t.stop = fmt.Errorf("%d calls in a row were not answered, the last: %w", t.inRow, err)
		}
	default:
		t.inRow = 0
	}
}

func (t *tally) stopped() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stop
}

// each asks for every volume, a few at a time, and tells how many gave no
// answer.
func (c *Client) each(ctx context.Context, handles []volume.Handle, ask func(context.Context, volume.Handle) error, unsupported func(error) error) error {
	var t tally
	var group errgroup.Group
	group.SetLimit(c.cfg.HealthParallelism)
	for _, h := range handles {
		if ctx.Err() != nil || t.stopped() != nil {
			break
		}
		group.Go(func() error {
			t.note(ask(ctx, h), unsupported)
			return nil
		})
	}
	_ = group.Wait() // the group's functions return nil; t has their errors.
	switch {
	case t.stop != nil:
		return t.stop
	case ctx.Err() != nil:
		return fmt.Errorf("asking volume by volume: %w", ctx.Err())
	case t.failed > 0:
		return fmt.Errorf("%d of %d volumes gave no answer, the first: %w", t.failed, len(handles), t.first)
	}
	return nil
}
