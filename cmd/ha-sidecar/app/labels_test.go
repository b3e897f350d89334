package app

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLabelsOfTheLeases(t *testing.T) {
	for args, want := range map[string]map[string]string{
		"":                             nil,
		"--leader-election-labels=a=b": {"a": "b"},
		"--leader-election-labels=a:b": {"a": "b"},
		"--leader-election-labels=example.com/a:b,c=d":                {"example.com/a": "b", "c": "d"},
		"--leader-election-labels=a=b --leader-election-labels=c=,a:": {"a": "", "c": ""},
		"--leader-election-labels=":                                   {},
	} {
		o, _, err := parseAll(t, strings.Fields(args)...)
		if diff := cmp.Diff(want, o.Leader.Labels); err != nil || diff != "" {
			t.Errorf("%q: %v, (-want +got):\n%s", args, err, diff)
		}
	}
	for args, want := range map[string]string{
		"--leader-election-labels=a":     `"a" is no label: write key=value`,
		"--leader-election-labels=a=b=c": "a=b=c is no label",
		"--leader-election-labels=a:b:c": "a=b:c is no label",
		"--leader-election-labels==b":    "=b is no label",
	} {
		if _, _, err := parseAll(t, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
