package csiclient

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of texts in bytes. 1024 is what the API server takes for an error of a
// VolumeAttachment and what volume.Condition promises.
const (
	maxMessage = 1024
	maxReason  = 256
)

const ellipsis = "..."

// oneLine makes text fit for a log line, an event or a status: valid UTF-8,
// without control characters, max bytes at most, cut between two characters.
func oneLine(text string, max int) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	return cut(strings.TrimSpace(text), max)
}

// cut shortens valid UTF-8 to max bytes and shows that it did.
func cut(text string, max int) string {
	if len(text) <= max {
		return text
	}
	end := max - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}
