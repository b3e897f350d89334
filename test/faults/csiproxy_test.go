package faults

import (
	"context"
	"errors"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// raw is a message that nobody looks into.
type raw struct{ bytes []byte }

// rawCodec hands messages through as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*raw).bytes)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*raw).bytes = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = rawCodec{}

// csiProxy stands between ha-sidecar and the driver.
type csiProxy struct {
	trap   *trap
	driver *grpc.ClientConn
	server *grpc.Server
	done   chan struct{}
}

func startCSIProxy(t *trap, driverSocket, socket string) (*csiProxy, error) {
	driver, err := grpc.NewClient("unix://"+driverSocket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", socket) // closed by the server
	if err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	p := &csiProxy{trap: t, driver: driver, done: make(chan struct{})}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.handle), grpc.StatsHandler(ends{t}))
	go func() {
		defer close(p.done)
		_ = p.server.Serve(listener) // ends with Stop
	}()
	return p, nil
}

func (p *csiProxy) stop() error {
	p.server.Stop()
	<-p.done
	return p.driver.Close()
}

// handle passes one unary call on.
func (p *csiProxy) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request, reply raw
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	ph := phase("")
	if what, changes := callOf(method); changes {
		ph = p.trap.enter(what)
	}
	ctx := stream.Context()
	if ph != "" {
		ctx = context.WithoutCancel(ctx)
	}
	if ph == before {
		p.trap.spring()
		return status.Error(codes.Unavailable, "the trap has sprung")
	}
	err := p.driver.Invoke(ctx, method, &request, &reply)
	if ph == replyLost {
		p.trap.spring()
		return status.Error(codes.Unavailable, "the trap has sprung")
	}
	if ph == after {
		stream.Context().Value(callKey{}).(*call).springs = true
	}
	if err == nil {
		err = stream.SendMsg(&reply)
	}
	return err
}

// ends springs the trap when the status of a call has followed its reply.
type ends struct{ trap *trap }

type callKey struct{}

type call struct{ springs bool }

func (ends) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, callKey{}, &call{})
}

func (e ends) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ended := s.(*stats.End); ended && ctx.Value(callKey{}).(*call).springs {
		e.trap.spring()
	}
}

func (ends) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (ends) HandleConn(context.Context, stats.ConnStats)                       {}

// callOf names a call that changes something at the storage.
func callOf(method string) (what string, changes bool) {
	name := method[strings.LastIndexByte(method, '/')+1:]
	switch name {
	case "ControllerPublishVolume", "ControllerUnpublishVolume", "CreateVolume", "DeleteVolume":
		return name, true
	default:
		return "", false
	}
}
