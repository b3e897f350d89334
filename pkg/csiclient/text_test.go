package csiclient

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestOneLine(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		max            int
	}{
		{"short", "plain", "plain", 10},
		{"exact", "0123456789", "0123456789", 10},
		{"cut", "0123456789a", "0123456...", 10},
		{"cut before a rune", "012345é789a", "012345...", 10},
		{"newlines", " a\r\nb\tc\x00 ", "a  b c", 20},
		{"invalid", "a\xffb", "a\uFFFDb", 10},
		{"empty", "", "", 10},
	} {
		if got := oneLine(tc.in, tc.max); got != tc.want {
			t.Errorf("%s: oneLine = %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestOneLineHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "in"))
		max := rapid.IntRange(3, 2000).Draw(t, "max")
		out := oneLine(in, max)
		if len(out) > max {
			t.Fatalf("%d bytes, want at most %d", len(out), max)
		}
		if !utf8.ValidString(out) {
			t.Fatalf("%q is not valid UTF-8", out)
		}
		if strings.ContainsFunc(out, unicode.IsControl) {
			t.Fatalf("%q has control characters", out)
		}
	})
}
