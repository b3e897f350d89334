package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

// wantLedgerExists: what the ledger shows as made and not deleted is what exists.
func wantLedgerExists(t interface {
	Helper()
	Fatal(...any)
	Errorf(string, ...any)
}, s *Store) {
	t.Helper()
	entries, err := s.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, entry := range entries {
		switch entry.Op {
		case OpCreate:
			want[entry.Volume] = entry.Name
		case OpDelete:
			delete(want, entry.Volume)
		case OpCreateSnapshot:
			want[entry.Snapshot] = entry.Name + " of " + entry.Volume
		case OpDeleteSnapshot:
			delete(want, entry.Snapshot)
		}
	}
	volumes, err := s.Volumes()
	if err != nil {
		t.Fatal(err)
	}
	for _, volume := range volumes {
		got[volume.ID] = volume.Name
	}
	snapshots, err := s.Snapshots()
	if err != nil {
		t.Fatal(err)
	}
	for _, snapshot := range snapshots {
		got[snapshot.ID] = snapshot.Name + " of " + snapshot.Volume
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what exists (-the ledger +the directory):\n%s", diff)
	}
}

func write(t *testing.T, s *Store, id, name, content string) {
	t.Helper()
	path := filepath.Join(s.DataDir(id), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, s *Store, id, name, want string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.DataDir(id), name))
	if err != nil || string(content) != want {
		t.Errorf("%s of %s: %q, %v, want %q", name, id, content, err, want)
	}
}

// TestCreateRepeats: the same request again finds the volume; another one under
// its name is a conflict and changes nothing.
func TestCreateRepeats(t *testing.T) {
	s, data := filled(t, t.TempDir())
	spec := Spec{Name: "v", Size: Range{Required: 10}, Requirement: Requirement{Requisite: at(zone("a"), zone("b"))},
		Parameters: map[string]string{"tier": "1"}, Mutable: map[string]string{"iops": "5"}, Source: Source{Volume: data}}
	first, err := s.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ModifyVolume(t.Context(), first.ID, map[string]string{"iops": "6", "depth": "2"}); err != nil {
		t.Fatal(err)
	}
	changed := func(change func(*Spec)) Spec { other := spec; change(&other); return other }
	for name, test := range map[string]struct {
		spec Spec
		err  error
	}{
		"the same":              {spec, nil},
		"other mutable ones":    {changed(func(o *Spec) { o.Mutable = nil }), nil},
		"elsewhere preferred":   {changed(func(o *Spec) { o.Requirement.Preferred = at(zone("b")) }), nil},
		"elsewhere":             {changed(func(o *Spec) { o.Requirement.Requisite = at(zone("b")) }), ErrConflict},
		"anywhere":              {changed(func(o *Spec) { o.Requirement = Requirement{} }), nil},
		"larger":                {changed(func(o *Spec) { o.Size.Required = 11 }), ErrConflict},
		"other parameters":      {changed(func(o *Spec) { o.Parameters = map[string]string{"tier": "2"} }), ErrConflict},
		"fewer parameters":      {changed(func(o *Spec) { o.Parameters = nil }), ErrConflict},
		"empty":                 {changed(func(o *Spec) { o.Source = Source{} }), ErrConflict},
		"from something else":   {changed(func(o *Spec) { o.Source = Source{Snapshot: "snap-x"} }), ErrConflict},
		"from a volume unknown": {changed(func(o *Spec) { o.Source = Source{Volume: "vol-x"} }), ErrConflict},
	} {
		got, err := s.Create(t.Context(), test.spec)
		if !errors.Is(err, test.err) || (err == nil && got.ID != first.ID) {
			t.Errorf("%s: %v, %v, want %v", name, got.ID, err, test.err)
		}
	}
	// The source may be gone by the time of a repeat, and the room too.
	if err := s.DeleteVolume(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if err := s.SetLimit(t.Context(), Limit{Bytes: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Create(t.Context(), spec)
	want := Volume{ID: "vol-v", Name: "v", Capacity: 10, Topology: zone("a"), Parameters: spec.Parameters,
		Mutable: map[string]string{"iops": "6", "depth": "2"}, Source: spec.Source}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	wantLedgerExists(t, s)
}

// TestCopies: a clone and a restored snapshot hold what the source held then,
// and nothing that one writes afterwards shows in another.
func TestCopies(t *testing.T) {
	s := open(t, t.TempDir())
	source, err := s.CreateVolume(t.Context(), "source", Range{Required: 10})
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, source.ID, "dir/log", "one")
	snapshot, err := s.CreateSnapshot(t.Context(), "then", source.ID)
	if err != nil || snapshot.Size != 10 || snapshot.Volume != source.ID {
		t.Fatalf("%+v, %v", snapshot, err)
	}
	write(t, s, source.ID, "dir/log", "two")
	clone, err := s.Create(t.Context(), Spec{Name: "clone", Source: Source{Volume: source.ID}})
	if err != nil || clone.Capacity != 10 {
		t.Fatalf("%+v, %v", clone, err)
	}
	if err := s.DeleteVolume(t.Context(), source.ID); err != nil {
		t.Fatal(err)
	}
	restored, err := s.Create(t.Context(), Spec{Name: "restored", Size: Range{Required: 15}, Source: Source{Snapshot: snapshot.ID}})
	if err != nil || restored.Capacity != 15 {
		t.Fatalf("%+v, %v", restored, err)
	}
	wantFile(t, s, clone.ID, "dir/log", "two")
	wantFile(t, s, restored.ID, "dir/log", "one")
	write(t, s, clone.ID, "dir/log", "three")
	if err := s.DeleteSnapshot(t.Context(), snapshot.ID); err != nil {
		t.Fatal(err)
	}
	wantFile(t, s, restored.ID, "dir/log", "one")
	for name, test := range map[string]struct {
		spec Spec
		err  error
	}{
		"from a volume that is gone":   {Spec{Source: Source{Volume: source.ID}}, ErrNotFound},
		"from a snapshot that is gone": {Spec{Source: Source{Snapshot: snapshot.ID}}, ErrNotFound},
		"from a path":                  {Spec{Source: Source{Snapshot: "../volumes/" + clone.ID}}, ErrNotFound},
		"smaller":                      {Spec{Size: Range{Required: 9}, Source: Source{Volume: clone.ID}}, ErrRange},
		"limited below":                {Spec{Size: Range{Limit: 9}, Source: Source{Volume: clone.ID}}, ErrRange},
		"from itself":                  {Spec{Source: Source{Volume: "vol-refused"}}, ErrNotFound},
	} {
		test.spec.Name = "refused"
		if _, err := s.Create(t.Context(), test.spec); !errors.Is(err, test.err) {
			t.Errorf("%s: %v, want %v", name, err, test.err)
		}
	}
	wantLedgerExists(t, s)
}

// TestLeftoversDoNotShow: what a creation left that did not get to its record is
// not in the volume that is made then.
func TestLeftoversDoNotShow(t *testing.T) {
	s := open(t, t.TempDir())
	write(t, s, "vol-v", "half", "copied")
	volume, err := s.CreateVolume(t.Context(), "v", Range{})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(s.DataDir(volume.ID)); err != nil || len(entries) > 0 {
		t.Errorf("in a new volume: %v, %v", entries, err)
	}
}

func TestSnapshots(t *testing.T) {
	s, data := filled(t, t.TempDir())
	for range 2 {
		if got, err := s.CreateSnapshot(t.Context(), "s", data); err != nil || got.ID != "snap-s" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := s.CreateVolume(t.Context(), "other", Range{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateSnapshot(t.Context(), "s", "vol-other"); !errors.Is(err, ErrConflict) {
		t.Errorf("of another volume: %v", err)
	}
	if _, err := s.CreateSnapshot(t.Context(), "t", "vol-none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no volume: %v", err)
	}
	wantLedgerExists(t, s)
	for _, id := range []string{"snap-s", "snap-s", "snap-never", "nonsense", "../x"} {
		if err := s.DeleteSnapshot(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if all, err := s.Snapshots(); err != nil || len(all) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	wantLedgerExists(t, s)
}

// TestCopiesInACircle: volumes that are made from one another at once do not
// wait for one another for ever.
func TestCopiesInACircle(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	var group sync.WaitGroup
	for i := range 20 {
		other := open(t, dir)
		from, name := fmt.Sprint("v", i%2), fmt.Sprint("v", (i+1)%2)
		group.Go(func() {
			_, err := other.Create(t.Context(), Spec{Name: name, Source: Source{Volume: VolumeID(from)}})
			if err != nil && !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
			if _, err := other.CreateSnapshot(t.Context(), name, VolumeID(from)); err != nil && !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	wantLedgerExists(t, s)
}
