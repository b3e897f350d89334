package csiclient

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	csimetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	// logLevel is the verbosity from which requests and replies are logged.
	logLevel = 5
	// maxLogged bounds the bytes of a message that is rendered for a log.
	maxLogged = 64 << 10
)

// intercept is around every call: it sets the deadline, records, classifies the
// error and logs.
func (c *Client) intercept(ctx context.Context, fullMethod string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	timeout := c.timeoutOf(fullMethod)
	callCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	callCtx, sent := withSentMark(callCtx)

	start := c.cfg.Clock.Now()
	err := invoke(callCtx, fullMethod, req, reply, cc, opts...)
	took := c.cfg.Clock.Since(start)

	c.record(ctx, fullMethod, err, took)
	call := call{method: fullMethod, req: req, reply: reply, took: took}
	if err != nil {
		call.err = c.callError(fullMethod, req, err, sent.Load())
		if call.err.Code == codes.DeadlineExceeded && ctx.Err() == nil {
			call.err.Message = fmt.Sprintf("no answer within %s", timeout)
		}
	}
	c.metrics.outcome(path.Base(fullMethod), volume.OutcomeOf(call.error()))
	call.log(klog.FromContext(ctx))
	return call.error()
}

// record gives the call to the metric that CSI sidecars have in common. The label
// migrated is "false" where nothing is known of it, as with the upstream sidecars.
func (c *Client) record(ctx context.Context, fullMethod string, err error, took time.Duration) {
	if c.cfg.Metrics == nil {
		return
	}
	if c.cfg.Metrics.HaveAdditionalLabel(csimetrics.LabelMigrated) {
		migrated := strconv.FormatBool(volume.Migrated(ctx))
		labelled, problem := c.cfg.Metrics.WithLabelValues(map[string]string{csimetrics.LabelMigrated: migrated})
		if problem == nil {
			labelled.RecordMetrics(fullMethod, err, took)
			return
		}
		klog.FromContext(ctx).Error(problem, "Failed to label the metric of a call", "method", fullMethod)
	}
	c.cfg.Metrics.RecordMetrics(fullMethod, err, took)
}

// timeoutOf is longer for calls that work than for those that only ask who is
// there.
func (c *Client) timeoutOf(fullMethod string) time.Duration {
	if strings.HasPrefix(fullMethod, "/"+csi.Identity_ServiceDesc.ServiceName+"/") ||
		fullMethod == csi.Controller_ControllerGetCapabilities_FullMethodName {
		return c.cfg.ConnectTimeout
	}
	return c.cfg.Timeout
}

// callError turns an error of the library into ours.
func (c *Client) callError(fullMethod string, req any, err error, sent bool) *CallError {
	st := status.Convert(err)
	e := &CallError{
		Method:  path.Base(fullMethod),
		Code:    st.Code(),
		Message: oneLine(newRedactor(req).clean(st.Message()), maxMessage),
		Sent:    sent,
		cause:   causeOf(st.Code()),
	}
	if e.Message == "" {
		e.Message = "the driver gave no message"
	}
	if isOversize(st, c.cfg.MaxReceiveBytes) {
		c.metrics.malformed.WithLabelValues(malformedOversize).Inc()
		e.oversize = true
		e.Message = fmt.Sprintf("the reply is over the receive limit of %d bytes; raise --csi-max-receive-bytes, or have the driver honour max_entries",
			c.cfg.MaxReceiveBytes)
	}
	if !sent {
		e.outcome, e.Why = neverSent.outcome, neverSent.why
		return e
	}
	e.outcome, e.Why = Classify(classOf(fullMethod), e.Code)
	if e.oversize && classOf(fullMethod) == Create {
		e.outcome, e.Why = oversized.outcome, oversized.why
	}
	return e
}

// isOversize reports whether our own side refused a reply for its size. The
// same words with another limit come from a driver that refused our request.
func isOversize(st *status.Status, limit int) bool {
	if st.Code() != codes.ResourceExhausted {
		return false
	}
	msg := st.Message()
	return strings.HasPrefix(msg, "grpc: received message larger than max (") && strings.HasSuffix(msg, fmt.Sprintf(" vs. %d)", limit)) ||
		strings.HasSuffix(msg, fmt.Sprintf("message after decompression larger than max %d", limit))
}

// call is a finished call, for its log line.
type call struct {
	method     string
	req, reply any
	err        *CallError
	took       time.Duration
}

// error avoids the interface that is not nil though the pointer in it is.
func (c *call) error() error {
	if c.err == nil {
		return nil
	}
	return c.err
}

// log renders nothing unless the level is on: a reply may list a hundred
// thousand volumes.
func (c *call) log(logger logr.Logger) {
	if logger = logger.V(logLevel); !logger.Enabled() {
		return
	}
	redact := newRedactor(c.req)
	args := []any{"method", c.method, "took", c.took, "request", redact.clean(render(c.req))}
	if c.err != nil {
		args = append(args, "code", c.err.Code.String(), "outcome", c.err.outcome, "err", c.err.Error())
	} else {
		args = append(args, "reply", redact.clean(render(c.reply)))
	}
	logger.Info("Called the driver", args...)
}

// render makes a message readable without what may be secret in it.
func render(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return protosanitizer.StripSecrets(msg).String()
	}
	if size := proto.Size(m); size > maxLogged {
		return fmt.Sprintf("<%s of %d bytes>", m.ProtoReflect().Descriptor().Name(), size)
	}
	m = proto.Clone(m)
	maskForLog(m.ProtoReflect())
	return protosanitizer.StripSecrets(m).String()
}
