package csiclient

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// lenientCodec reads replies whose strings are not valid UTF-8, which the usual
// codec refuses as a whole: one volume with a garbled message must not hide the
// health of all others. It serves reads of health only. Where a reply is stored
// or acted on, as a publish context is, it is refused.
type lenientCodec struct {
	encoding.CodecV2

	repaired func()
}

// lenient is the option for calls that read health.
func (c *Client) lenient() grpc.CallOption {
	return grpc.ForceCodecV2(lenientCodec{
		CodecV2:  encoding.GetCodecV2(grpcproto.Name),
		repaired: func() { c.metrics.malformed.WithLabelValues(malformedUTF8).Inc() },
	})
}

// Unmarshal implements encoding.CodecV2.
func (l lenientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	err := l.CodecV2.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return err
	}
	raw := data.Materialize()
	repaired := repairUTF8(raw, m.ProtoReflect().Descriptor())
	if bytes.Equal(raw, repaired) {
		return err
	}
	proto.Reset(m)
	if err := proto.Unmarshal(repaired, m); err != nil {
		return err
	}
	l.repaired()
	return nil
}

// repairUTF8 replaces invalid bytes in the string fields of an encoded message.
// What cannot be parsed is left as it is, for the decoder to complain about.
func repairUTF8(b []byte, desc protoreflect.MessageDescriptor) []byte {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return append(out, b...)
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return append(out, b...)
		}
		field := desc.Fields().ByNumber(num)
		if field == nil || typ != protowire.BytesType {
			out = append(out, b[:n+size]...)
			b = b[n+size:]
			continue
		}
		value, _ := protowire.ConsumeBytes(b[n:])
		switch field.Kind() {
		case protoreflect.StringKind:
			value = bytes.ToValidUTF8(value, []byte(string(utf8.RuneError)))
		case protoreflect.MessageKind:
			value = repairUTF8(value, field.Message())
		}
		out = append(out, b[:n]...)
		out = protowire.AppendBytes(out, value)
		b = b[n+size:]
	}
	return out
}

// garbled reports whether an identifier was repaired, so that it is not the one
// that the driver meant.
func garbled(id string) bool { return strings.ContainsRune(id, utf8.RuneError) }
