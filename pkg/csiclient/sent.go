package csiclient

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

type sentKey struct{}

// withSentMark gives the call of ctx a mark that is set once its headers were
// handed to the transport. A call that fails without the mark never left.
func withSentMark(ctx context.Context) (context.Context, *atomic.Bool) {
	mark := new(atomic.Bool)
	return context.WithValue(ctx, sentKey{}, mark), mark
}

// sentHandler sets the mark. gRPC tells a stats.Handler of outgoing headers in
// the course of making the stream, before the call can return.
type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutHeader); !ok {
		return
	}
	if mark, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		mark.Store(true)
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentHandler) HandleConn(context.Context, stats.ConnStats) {}
