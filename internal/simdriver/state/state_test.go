package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// filled is a store with one volume and three nodes.
func filled(t testing.TB, dir string) (*Store, string) {
	t.Helper()
	s := open(t, dir)
	for _, node := range []string{"a", "b", "c"} {
		if err := s.Register(context.Background(), node); err != nil {
			t.Fatal(err)
		}
	}
	volume, err := s.CreateVolume(context.Background(), "data", Range{})
	if err != nil {
		t.Fatal(err)
	}
	return s, volume.ID
}

func TestVolumeID(t *testing.T) {
	for name, want := range map[string]string{
		"pvc-1":                  "vol-pvc-1",
		"a.b_c":                  "vol-a.b_c",
		"../../etc":              "vol-" + "",
		"":                       "vol-" + "",
		"two words":              "vol-" + "",
		strings.Repeat("x", 120): "vol-" + strings.Repeat("x", 120),
		strings.Repeat("x", 121): "vol-" + "",
	} {
		got := VolumeID(name)
		if want != "vol-" && got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
		if want == "vol-" && len(got) != len("vol-")+32 {
			t.Errorf("%q: %s is not a hash", name, got)
		}
		if !validID(got) || len(got) > 128 {
			t.Errorf("%q: %s is no valid ID", name, got)
		}
	}
}

// TestIDsAreNoPaths: whatever a caller sends, it stays within the directory.
func TestIDsAreNoPaths(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		id := rapid.OneOf(rapid.String(), rapid.StringMatching(`vol-[./a-z]{0,10}`)).Draw(rt, "id")
		if validID(id) && (strings.ContainsAny(id, "/\x00") || filepath.Clean(id) != id) {
			rt.Errorf("%q is taken for an ID", id)
		}
		if ValidNodeID(id) && (strings.ContainsAny(id, "/\x00") || filepath.Clean(id) != id || strings.HasPrefix(id, ".")) {
			rt.Errorf("%q is taken for a node", id)
		}
	})
}

func TestCreateVolume(t *testing.T) {
	s := open(t, t.TempDir())
	for _, test := range []struct {
		size Range
		err  error
	}{
		{Range{Required: 10, Limit: 20}, nil},
		{Range{Required: 10, Limit: 20}, nil},
		{Range{}, nil},
		{Range{Required: 5}, nil},
		{Range{Required: 11}, ErrConflict},
		{Range{Limit: 9}, ErrConflict},
	} {
		got, err := s.CreateVolume(t.Context(), "data", test.size)
		if !errors.Is(err, test.err) || (err == nil && (got.ID != "vol-data" || got.Capacity != 10)) {
			t.Errorf("%+v: %+v, %v, want %v", test.size, got, err, test.err)
		}
	}
	for range 2 {
		if err := s.DeleteVolume(t.Context(), "vol-data"); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Volume("vol-data"); !errors.Is(err, ErrNotFound) {
		t.Errorf("reading a deleted volume: %v", err)
	}
}

func TestCoexists(t *testing.T) {
	for _, test := range []struct {
		a, b Publication
		want bool
	}{
		{Publication{Mode: "SINGLE_NODE_WRITER"}, Publication{Mode: "SINGLE_NODE_WRITER"}, false},
		{Publication{Mode: "SINGLE_NODE_READER_ONLY"}, Publication{Mode: "MULTI_NODE_READER_ONLY"}, false},
		{Publication{Mode: "MULTI_NODE_MULTI_WRITER"}, Publication{Mode: "SINGLE_NODE_SINGLE_WRITER"}, false},
		{Publication{Mode: "MULTI_NODE_MULTI_WRITER"}, Publication{Mode: "MULTI_NODE_MULTI_WRITER"}, true},
		{Publication{Mode: "MULTI_NODE_SINGLE_WRITER"}, Publication{Mode: "MULTI_NODE_SINGLE_WRITER"}, false},
		{Publication{Mode: "MULTI_NODE_SINGLE_WRITER"}, Publication{Mode: "MULTI_NODE_SINGLE_WRITER", ReadOnly: true}, true},
		{Publication{Mode: "MULTI_NODE_READER_ONLY"}, Publication{Mode: "MULTI_NODE_READER_ONLY"}, true},
	} {
		if got := test.a.coexists(test.b); got != test.want || test.b.coexists(test.a) != test.want {
			t.Errorf("%+v with %+v: %v, want %v", test.a, test.b, got, test.want)
		}
	}
}

// TestOneWinner: of many nodes that are given the volume at once, by as many
// processes, one has it.
func TestOneWinner(t *testing.T) {
	dir := t.TempDir()
	s, id := filled(t, dir)
	for range 20 {
		var group sync.WaitGroup
		won := make(chan string, 3)
		for _, node := range []string{"a", "b", "c"} {
			other := open(t, dir)
			group.Go(func() {
				_, err := other.Publish(t.Context(), Publication{Volume: id, Node: node, Mode: "SINGLE_NODE_WRITER"})
				if err == nil {
					won <- node
				} else if !errors.Is(err, ErrInUse) {
					t.Error(err)
				}
			})
		}
		group.Wait()
		close(won)
		if len(won) != 1 {
			t.Fatalf("%d nodes have the volume", len(won))
		}
		if err := s.Unpublish(t.Context(), id, <-won); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPublications compares the store, opened anew each time, with a model, and
// the ledger with both.
func TestPublications(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "state")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		_, id := filled(t, dir)
		holder := ""
		node := rapid.SampledFrom([]string{"a", "b", "c"})
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(rt *rapid.T) {
				n := node.Draw(rt, "node")
				_, err := open(t, dir).Publish(t.Context(), Publication{Volume: id, Node: n, Mode: "SINGLE_NODE_WRITER"})
				if want := holder == "" || holder == n; (err == nil) != want {
					rt.Fatalf("publishing to %s while %q has it: %v", n, holder, err)
				}
				if err == nil {
					holder = n
				}
			},
			"unpublish": func(rt *rapid.T) {
				n := rapid.OneOf(node, rapid.Just("")).Draw(rt, "node")
				if err := open(t, dir).Unpublish(t.Context(), id, n); err != nil {
					rt.Fatal(err)
				}
				if n == holder || n == "" {
					holder = ""
				}
			},
			"": func(rt *rapid.T) { checkHolder(rt, open(t, dir), id, holder) },
		})
		checkLedger(rt, open(t, dir))
	})
}

func checkHolder(rt *rapid.T, s *Store, id, holder string) {
	all, err := s.Publications()
	if err != nil {
		rt.Fatal(err)
	}
	if (holder == "") != (len(all) == 0) || (len(all) == 1 && all[0].Node != holder) || len(all) > 1 {
		rt.Fatalf("publications %+v, want %q", all, holder)
	}
	volume, err := s.Volume(id)
	if err != nil {
		rt.Fatal(err)
	}
	for _, node := range []string{"a", "b", "c"} {
		g, err := s.Gate(id, node)
		if err != nil {
			rt.Fatal(err)
		}
		passable := false
		for generation := range volume.Generation + 1 {
			passable = passable || g.Passable(generation)
		}
		if err := g.Close(); err != nil {
			rt.Fatal(err)
		}
		if passable != (node == holder) {
			rt.Fatalf("the gate of %s passes: %v, but %q has the volume", node, passable, holder)
		}
	}
}

// checkLedger: no two nodes at once, and no generation twice.
func checkLedger(rt *rapid.T, s *Store) {
	entries, err := s.Ledger()
	if err != nil {
		rt.Fatal(err)
	}
	holder, last := "", uint64(0)
	for _, entry := range entries {
		switch entry.Op {
		case OpPublish:
			if holder != "" || entry.Generation <= last {
				rt.Fatalf("%+v while %q has it, after generation %d", entry, holder, last)
			}
			holder, last = entry.Node, entry.Generation
		case OpUnpublish:
			if holder != entry.Node {
				rt.Fatalf("%+v while %q has it", entry, holder)
			}
			holder = ""
		case OpRefused:
			if holder == "" || holder == entry.Node {
				rt.Fatalf("%+v while %q has it", entry, holder)
			}
		case OpCreate: // the first
		default:
			rt.Fatalf("unexpected %+v", entry)
		}
	}
}

// TestUnpublishWaits: no acknowledgement, and no other node, while an operation
// is in flight; the gate is shut all the same.
func TestUnpublishWaits(t *testing.T) {
	s, id := filled(t, t.TempDir())
	publication, err := s.Publish(t.Context(), Publication{Volume: id, Node: "a", Mode: "SINGLE_NODE_WRITER"})
	if err != nil {
		t.Fatal(err)
	}
	serving, err := s.Gate(id, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer serving.Close()
	if !serving.Enter(publication.Generation) {
		t.Fatal("could not enter")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.DeadlineExceeded)
	if err := s.Unpublish(ctx, id, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("unpublish with an operation in flight: %v", err)
	}
	if _, err := s.Publish(t.Context(), Publication{Volume: id, Node: "b", Mode: "SINGLE_NODE_WRITER"}); !errors.Is(err, ErrInUse) {
		t.Errorf("publishing elsewhere before the acknowledgement: %v", err)
	}
	serving.Leave()
	if err := s.Unpublish(t.Context(), id, "a"); err != nil {
		t.Error(err)
	}
}

func TestConditions(t *testing.T) {
	s, id := filled(t, t.TempDir())
	for _, test := range []struct {
		conditions []Condition
		ok         bool
	}{
		{nil, true},
		{[]Condition{{Kind: Degraded}, {Kind: DataLoss, Reason: "Gone"}}, true},
		{[]Condition{{Kind: Degraded}, {Kind: Degraded}}, false},
		{[]Condition{{Kind: Degraded}, {Kind: Degraded, Reason: "Slow"}}, true},
		{[]Condition{{Kind: "ill"}}, false},
		{[]Condition{{Kind: Unreachable}}, false},
		{[]Condition{{Kind: Degraded, Reason: "two words"}}, false},
	} {
		if err := s.SetHealth(t.Context(), id, "", test.conditions); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test.conditions, err)
		} else if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v is not ErrInvalid", test.conditions, err)
		}
	}
	for _, err := range []error{
		s.SetHealth(t.Context(), id, "unknown", nil), s.SetHealth(t.Context(), "vol-unknown", "", nil),
		s.SetStorageHealth(t.Context(), "unknown", nil), s.FailPath(t.Context(), id, "unknown"),
		s.HealPath(t.Context(), "vol-unknown", "a"),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%v, want not found", err)
		}
	}
}

// TestDamage: a damaged record is an error, never an empty volume.
func TestDamage(t *testing.T) {
	s, id := filled(t, t.TempDir())
	if err := os.WriteFile(s.recordPath(id), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Volumes(); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("listing with a damaged record: %v", err)
	}
	if _, err := s.CreateVolume(t.Context(), "data", Range{}); err == nil {
		t.Error("a damaged volume was made anew")
	}
	if err := os.WriteFile(s.ledgerPath(), []byte("{}\n{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ledger(); err == nil || !strings.Contains(err.Error(), "entry 2") {
		t.Errorf("reading a damaged ledger: %v", err)
	}
	if _, err := New(Config{Dir: s.ledgerPath()}); err == nil {
		t.Error("a file became a state directory")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no directory became a state directory")
	}
}

// TestLedgerLinesDoNotMix: many processes write at once.
func TestLedgerLinesDoNotMix(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for i := range 8 {
		s := open(t, dir)
		group.Go(func() {
			for range 50 {
				if err := s.record(Entry{Op: OpStage, Volume: fmt.Sprint("vol-", i), Path: strings.Repeat("x", 2000)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	entries, err := open(t, dir).Ledger()
	if err != nil || len(entries) != 400 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}
