package world

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestWithin(t *testing.T) {
	logs := filepath.Join(t.TempDir(), "logs")
	failed := errors.New("failed")
	var was string
	for _, content := range []string{"one", "two"} {
		err := Within(logs, func(dir string) error {
			was = dir
			if err := os.Mkdir(filepath.Join(dir, "logs"), 0o755); err != nil {
				return err
			}
			return errors.Join(failed, os.WriteFile(filepath.Join(dir, "logs", content), nil, 0o600))
		})
		if !errors.Is(err, failed) {
			t.Errorf("%v, want what was done to have failed", err)
		}
	}
	if _, err := os.Stat(was); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	if entries, err := os.ReadDir(logs); err != nil || len(entries) != 1 || entries[0].Name() != "two" {
		t.Errorf("the logs are %v, %v; want those of the second", entries, err)
	}
	if err := Within(logs, func(string) error { return nil }); err != nil {
		t.Errorf("without logs: %v", err)
	}
}

func TestEach(t *testing.T) {
	var calls, most, now atomic.Int32
	bad := errors.New("bad")
	err := Each(200, func(i int) error {
		calls.Add(1)
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		if i == 7 {
			return bad
		}
		return nil
	})
	if calls.Load() != 200 || most.Load() > sideBySide || !errors.Is(err, bad) {
		t.Errorf("%d calls, %d at once, %v", calls.Load(), most.Load(), err)
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := Pause(t.Context(), time.Minute); err != nil || time.Since(begun) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(enough)
		if err := Pause(ctx, time.Hour); !errors.Is(err, enough) {
			t.Errorf("%v, want the cause", err)
		}
	})
}
