package state

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func zone(z string) Segments        { return Segments{"zone": z} }
func rack(z, r string) Segments     { return Segments{"zone": z, "rack": r} }
func at(all ...Segments) []Segments { return all }

func TestTerms(t *testing.T) {
	for name, test := range map[string]struct {
		requirement Requirement
		want        []Segments
	}{
		"none":                            {Requirement{}, nil},
		"requisite in its order":          {Requirement{Requisite: at(zone("b"), zone("a"))}, at(zone("b"), zone("a"))},
		"the preferred first":             {Requirement{Requisite: at(zone("a"), zone("b")), Preferred: at(zone("b"))}, at(zone("b"), zone("a"))},
		"only preferred":                  {Requirement{Preferred: at(zone("b"), zone("a"))}, at(zone("b"), zone("a"))},
		"not what is not allowed":         {Requirement{Requisite: at(zone("a")), Preferred: at(zone("c"), zone("a"))}, at(zone("a"))},
		"a rack in an allowed zone":       {Requirement{Requisite: at(zone("a")), Preferred: at(rack("a", "1"))}, at(rack("a", "1"), zone("a"))},
		"a zone beyond an allowed rack":   {Requirement{Requisite: at(rack("a", "1")), Preferred: at(zone("a"))}, at(rack("a", "1"))},
		"a key that the others lack":      {Requirement{Requisite: at(zone("a")), Preferred: at(Segments{"host": "a"})}, at(zone("a"))},
		"the same term twice is one":      {Requirement{Requisite: at(zone("a"), zone("a")), Preferred: at(zone("a"))}, at(zone("a"))},
		"an empty value is not a lacking": {Requirement{Requisite: at(Segments{"zone": ""}), Preferred: at(Segments{"host": "x"})}, at(Segments{"zone": ""})},
	} {
		if diff := cmp.Diff(test.want, test.requirement.Terms()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestTermsAreAllowedAndAdmitted: whatever is asked for, each term is allowed,
// none is offered twice, nothing allowed is left out, and a volume that was made
// there fulfils the same requirement again.
func TestTermsAreAllowedAndAdmitted(t *testing.T) {
	segments := rapid.Custom(func(rt *rapid.T) Segments {
		return Segments(rapid.MapOfN(rapid.SampledFrom([]string{"zone", "rack"}), rapid.SampledFrom([]string{"1", "2"}), 1, 2).Draw(rt, "segments"))
	})
	rapid.Check(t, func(rt *rapid.T) {
		r := Requirement{
			Requisite: rapid.SliceOfN(segments, 0, 4).Draw(rt, "requisite"),
			Preferred: rapid.SliceOfN(segments, 0, 4).Draw(rt, "preferred"),
		}
		terms := r.Terms()
		for i, term := range terms {
			if !r.Admits(term) {
				rt.Errorf("%v is offered and not admitted by %+v", term, r)
			}
			for _, other := range terms[:i] {
				if maps.Equal(term, other) {
					rt.Errorf("%v is offered twice", term)
				}
			}
		}
		if len(r.Requisite) > 0 && len(terms) == 0 {
			rt.Errorf("%+v leaves nothing", r)
		}
	})
}

func TestAdmits(t *testing.T) {
	r := Requirement{Requisite: at(zone("a"), zone("b")), Preferred: at(zone("a"))}
	for _, test := range []struct {
		at   Segments
		want bool
	}{
		{nil, true}, {zone("a"), true}, {zone("b"), true}, {zone("c"), false}, {rack("b", "1"), true}, {Segments{"rack": "1"}, false},
	} {
		if got := r.Admits(test.at); got != test.want {
			t.Errorf("%v: %v, want %v", test.at, got, test.want)
		}
	}
	if !(Requirement{Preferred: at(zone("a"))}).Admits(zone("b")) {
		t.Error("a preference became a requirement")
	}
}

// TestPublishElsewhere: a node that is not where the volume is does not get it;
// one that never said where it is does.
func TestPublishElsewhere(t *testing.T) {
	s, _ := filled(t, t.TempDir())
	for node, where := range map[string]Segments{"a": rack("1", "1"), "b": zone("2")} {
		if err := s.RegisterAt(t.Context(), node, where); err != nil {
			t.Fatal(err)
		}
	}
	volume, err := s.Create(t.Context(), Spec{Name: "placed", Requirement: Requirement{Requisite: at(zone("1"))}})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(node string) error {
		_, err := s.Publish(t.Context(), Publication{Volume: volume.ID, Node: node, Mode: "MULTI_NODE_MULTI_WRITER"})
		return err
	}
	if err := publish("b"); !errors.Is(err, ErrInaccessible) {
		t.Errorf("publishing to another zone: %v", err)
	}
	for _, node := range []string{"a", "c"} {
		if err := publish(node); err != nil {
			t.Errorf("publishing to node %s: %v", node, err)
		}
	}
	// It moves, and is registered again with what it has mounted.
	if err := s.RegisterAt(t.Context(), "b", zone("1")); err != nil {
		t.Fatal(err)
	}
	if err := publish("b"); err != nil {
		t.Errorf("publishing to a node that came: %v", err)
	}
}
