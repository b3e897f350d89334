package csiclient

import (
	"errors"
	"fmt"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// TestOutcomes holds the whole table, so that a change of one ruling is a
// change here as well. The columns are publish, unpublish, read.
func TestOutcomes(t *testing.T) {
	const (
		o = volume.OutcomeOK
		f = volume.OutcomeFinal
		u = volume.OutcomeUncertain
		r = volume.OutcomeRetry
	)
	want := map[codes.Code][5]volume.Outcome{
		codes.OK:                 {o, o, o, o, o},
		codes.Canceled:           {u, u, r, u, u},
		codes.Unknown:            {u, u, r, u, u},
		codes.InvalidArgument:    {f, f, f, f, f},
		codes.DeadlineExceeded:   {u, u, r, u, u},
		codes.NotFound:           {f, u, f, f, u},
		codes.AlreadyExists:      {u, f, f, f, f},
		codes.PermissionDenied:   {f, f, f, f, f},
		codes.ResourceExhausted:  {u, u, r, f, u},
		codes.FailedPrecondition: {f, f, r, f, f},
		codes.Aborted:            {u, u, r, u, u},
		codes.OutOfRange:         {f, f, f, f, f},
		codes.Unimplemented:      {f, f, f, f, f},
		codes.Internal:           {u, u, r, u, u},
		codes.Unavailable:        {u, u, r, u, u},
		codes.DataLoss:           {u, u, r, u, u},
		codes.Unauthenticated:    {f, f, f, f, f},
		codes.Code(17):           {u, u, r, u, u},
		codes.Code(4242):         {u, u, r, u, u},
		codes.Code(1<<32 - 1):    {u, u, r, u, u},
	}
	for code := codes.Code(0); code <= 16; code++ {
		if _, ok := want[code]; !ok {
			t.Errorf("Code %s is not in the test's table", code)
		}
	}
	for code, outcomes := range want {
		for class, outcome := range outcomes {
			got, why := Classify(Class(class), code)
			if got != outcome || why == "" {
				t.Errorf("Classify(%d, %s) = %s, %q, want %s with a reason", class, code, got, why, outcome)
			}
		}
	}
}

func TestClassOfEveryCall(t *testing.T) {
	want := map[string]Class{
		"ControllerPublishVolume": Publish, "ControllerUnpublishVolume": Unpublish, "CreateVolume": Create, "DeleteVolume": Delete,
	}
	for _, m := range csi.Controller_ServiceDesc.Methods {
		class, ok := want[m.MethodName]
		if !ok {
			class = Read
		}
		if got := classOf("/csi.v1.Controller/" + m.MethodName); got != class {
			t.Errorf("classOf(%s) = %d, want %d", m.MethodName, got, class)
		}
	}
}

// TestNeverSentIsRetry: no code makes a request that never left an uncertainty.
func TestNeverSentIsRetry(t *testing.T) {
	c := newClient(t, Config{Address: "/s"})
	for code := codes.Code(1); code <= 17; code++ {
		raw := status.Error(code, "x")
		e := c.callError(csi.Controller_ControllerPublishVolume_FullMethodName, nil, raw, false)
		if e.Outcome() != volume.OutcomeRetry {
			t.Errorf("Unsent with %s: outcome %s, want retry", code, e.Outcome())
		}
	}
}

func TestCallErrorIsFoundByItsFriends(t *testing.T) {
	c := newClient(t, Config{Address: "/s"})
	e := c.callError(csi.Controller_ControllerPublishVolume_FullMethodName, nil, status.Error(codes.NotFound, "no such node"), true)
	wrapped := fmt.Errorf("attaching: %w", e)
	if got := volume.OutcomeOf(wrapped); got != volume.OutcomeFinal {
		t.Errorf("OutcomeOf = %s, want final", got)
	}
	if got := status.Code(wrapped); got != codes.NotFound {
		t.Errorf("status.Code = %s, want NotFound", got)
	}
	if got, want := e.Error(), "calling ControllerPublishVolume: NotFound: no such node"; got != want {
		t.Errorf("Error = %q, want %q", got, want)
	}
	if plain := c.callError("/x/Y", nil, errors.New("no status"), true); plain.Code != codes.Unknown {
		t.Errorf("An error without a status has code %s, want Unknown", plain.Code)
	}
	if mute := c.callError("/x/Y", nil, status.Error(codes.Internal, ""), true); mute.Message == "" {
		t.Error("An error without a message has an empty one, want words")
	}
}

// TestOversizedReplyOfACreateIsUncertain: the code alone would say that there was
// no room.
func TestOversizedReplyOfACreateIsUncertain(t *testing.T) {
	c := newClient(t, Config{Address: "/s", MaxReceiveBytes: 1000})
	for text, want := range map[string]volume.Outcome{
		"grpc: received message larger than max (2000 vs. 1000)": volume.OutcomeUncertain,
		"the pool is full": volume.OutcomeFinal,
	} {
		e := c.callError(csi.Controller_CreateVolume_FullMethodName, nil, status.Error(codes.ResourceExhausted, text), true)
		if e.Outcome() != want {
			t.Errorf("%q: outcome %s, want %s", text, e.Outcome(), want)
		}
	}
}
