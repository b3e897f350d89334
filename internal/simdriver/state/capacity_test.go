package state

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

func TestRoomAt(t *testing.T) {
	limits := []Limit{
		{Bytes: ptr.To[int64](100)},
		{Segments: zone("b"), Bytes: ptr.To[int64](50), MaximumVolumeSize: ptr.To[int64](20)},
		{Segments: rack("b", "1"), Bytes: ptr.To[int64](30)},
		{Segments: zone("c"), MaximumVolumeSize: ptr.To[int64](7)},
	}
	volumes := []Volume{
		{Topology: zone("a"), Capacity: 60}, {Topology: zone("b"), Capacity: 10}, {Topology: rack("b", "1"), Capacity: 25},
		{Topology: rack("b", "2"), Capacity: 1}, {Topology: zone("d"), Capacity: 200}, {Capacity: 5},
	}
	for _, test := range []struct {
		at   Segments
		want Room
	}{
		{zone("a"), Room{Available: 40}},
		{nil, Room{Available: 95}},
		{zone("b"), Room{Available: 14, MaximumVolumeSize: 20}},
		{rack("b", "1"), Room{Available: 5, MaximumVolumeSize: 20}},
		{rack("b", "2"), Room{Available: 14, MaximumVolumeSize: 20}},
		{zone("c"), Room{Available: math.MaxInt64, MaximumVolumeSize: 7}},
		{zone("d"), Room{}}, // over the limit is no room, never less
	} {
		if got := roomAt(test.at, limits, volumes); got != test.want {
			t.Errorf("%v: %+v, want %+v", test.at, got, test.want)
		}
	}
}

func TestPlace(t *testing.T) {
	rooms := map[string]Room{
		"zone=a": {Available: 10}, "zone=b": {Available: 100, MaximumVolumeSize: 50}, "zone=c": {Available: 100, MaximumVolumeSize: 60}, "": {Available: 5},
	}
	room := func(at Segments) Room { return rooms[at.String()] }
	for name, test := range map[string]struct {
		terms []Segments
		bytes int64
		want  string
		err   error
	}{
		"the first":                 {at(zone("a"), zone("b")), 10, "zone=a", nil},
		"the first with room":       {at(zone("a"), zone("b")), 11, "zone=b", nil},
		"the first that may":        {at(zone("b"), zone("c")), 60, "zone=c", nil},
		"no room":                   {at(zone("a")), 11, "", ErrExhausted},
		"no room, or too large":     {at(zone("a"), zone("b")), 51, "", ErrExhausted},
		"too large everywhere":      {at(zone("b"), zone("c")), 61, "", ErrRange},
		"anywhere":                  {nil, 5, "", nil},
		"anywhere, and no room":     {nil, 6, "", ErrExhausted},
		"nothing fits in all cases": {at(zone("x")), 0, "zone=x", nil},
	} {
		got, err := place(test.terms, test.bytes, room)
		if !errors.Is(err, test.err) || got.String() != test.want {
			t.Errorf("%s: %q, %v, want %q, %v", name, got, err, test.want, test.err)
		}
	}
}

func TestSetLimit(t *testing.T) {
	s := open(t, t.TempDir())
	set := func(l Limit) {
		t.Helper()
		if err := s.SetLimit(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	wantRoom := func(at Segments, want int64) {
		t.Helper()
		if got, err := s.RoomAt(at); err != nil || got.Available != want {
			t.Errorf("%v: %+v, %v, want %d", at, got, err, want)
		}
	}
	wantRoom(zone("a"), math.MaxInt64)
	set(Limit{Bytes: ptr.To[int64](10)})
	set(Limit{Segments: zone("a"), Bytes: ptr.To[int64](20)})
	set(Limit{Segments: zone("a"), Bytes: ptr.To[int64](30)})
	wantRoom(zone("a"), 30)
	wantRoom(zone("b"), 10)
	wantRoom(nil, 10)
	for node, where := range map[string]Segments{"n1": zone("a"), "n2": zone("b"), "n3": zone("b"), "n4": nil} {
		if err := s.RegisterAt(t.Context(), node, where); err != nil {
			t.Fatal(err)
		}
	}
	wantRoom(nil, 40) // of the two zones
	set(Limit{Segments: zone("a"), MaximumVolumeSize: ptr.To[int64](5)})
	wantRoom(nil, math.MaxInt64) // a zone without a limit, and no overflow
	set(Limit{Segments: zone("a")})
	wantRoom(zone("a"), 10)
	set(Limit{})
	wantRoom(zone("b"), math.MaxInt64)
	set(Limit{})
	for _, bad := range []Limit{{Bytes: ptr.To[int64](-1)}, {MaximumVolumeSize: ptr.To[int64](0)}} {
		if err := s.SetLimit(t.Context(), bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestNeverOverTheLimit: however many processes create at once, a segment never
// holds more than its limit, and what is refused is not there.
func TestNeverOverTheLimit(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.SetLimit(t.Context(), Limit{Bytes: ptr.To[int64](10)}); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 24 {
		other := open(t, dir)
		group.Go(func() {
			_, err := other.Create(t.Context(), Spec{Name: fmt.Sprint("v", i), Size: Range{Required: 2},
				Requirement: Requirement{Requisite: at(zone("a"), zone("b"))}})
			if err != nil && !errors.Is(err, ErrExhausted) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	volumes, err := s.Volumes()
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]int64{}
	for _, volume := range volumes {
		held[volume.Topology.String()] += volume.Capacity
	}
	if len(volumes) != 10 || held["zone=a"] != 10 || held["zone=b"] != 10 {
		t.Errorf("%d volumes, %v", len(volumes), held)
	}
	wantLedgerExists(t, s)
}

// TestCapacityModel compares creating and deleting with a model of one segment.
func TestCapacityModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t, t.TempDir())
		const limit = 20
		if err := s.SetLimit(t.Context(), Limit{Bytes: ptr.To[int64](limit)}); err != nil {
			rt.Fatal(err)
		}
		held, names := map[string]int64{}, rapid.SampledFrom([]string{"a", "b", "c", "d"})
		left := func() int64 {
			sum := int64(limit)
			for _, bytes := range held {
				sum -= bytes
			}
			return sum
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				name, bytes := names.Draw(rt, "name"), rapid.Int64Range(1, 12).Draw(rt, "bytes")
				_, err := s.CreateVolume(t.Context(), name, Range{Required: bytes, Limit: bytes})
				was, exists := held[name]
				switch {
				case exists && was == bytes, !exists && bytes <= left():
					if err != nil {
						rt.Fatalf("creating %s of %d with %d left: %v", name, bytes, left(), err)
					}
					held[name] = bytes
				case exists:
					if !errors.Is(err, ErrConflict) {
						rt.Fatalf("creating %s of %d, that has %d: %v", name, bytes, was, err)
					}
				case !errors.Is(err, ErrExhausted):
					rt.Fatalf("creating %s of %d with %d left: %v", name, bytes, left(), err)
				}
			},
			"delete": func(rt *rapid.T) {
				name := names.Draw(rt, "name")
				if err := s.DeleteVolume(t.Context(), VolumeID(name)); err != nil {
					rt.Fatal(err)
				}
				delete(held, name)
			},
			"": func(rt *rapid.T) {
				if room, err := s.RoomAt(nil); err != nil || room.Available != left() {
					rt.Fatalf("%+v, %v, want %d", room, err, left())
				}
				wantLedgerExists(rt, s)
			},
		})
	})
}
