package simdriver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

func wantCode(t *testing.T, err error, want string) {
	t.Helper()
	if got := status.Code(err); got.String() != want {
		t.Errorf("the call answered %s (%v), want %s", got, err, want)
	}
	if status.Code(err) == codes.Unknown {
		t.Errorf("%v has no code", err)
	}
}

// wantLedger compares the operations and nodes of the ledger.
func wantLedger(t *testing.T, r *rig, want ...string) {
	t.Helper()
	entries, err := r.ctl.Ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		if entry.Op == state.OpCreate {
			continue // what these tests are about comes after it
		}
		got = append(got, entry.Op+" "+entry.Node)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
}
