package virtualnode

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is how long an event may take on a busy machine.
const bound = 30 * time.Second

// eventually waits until ok, and says what it waited for if that never comes.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// steadily checks that something stays as it is for a moment.
func steadily(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(150 * time.Millisecond); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		if !ok() {
			t.Fatalf("no longer true: %s", what)
		}
	}
}
