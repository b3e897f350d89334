package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Follower reads an audit log while the server writes it.
type Follower struct {
	path   string
	offset int64
	// rest is a line that was not whole yet.
	rest []byte
}

// Follow reads a log from its beginning.
func Follow(path string) *Follower { return &Follower{path: path} }

// Writes counts the writes of the agents since the last time.
func (f *Follower) Writes(agents ...Agent) (writes int, err error) {
	lines, err := f.lines()
	if err != nil {
		return 0, fmt.Errorf("following the audit log: %w", err)
	}
	for line := range bytes.Lines(lines) {
		var q Request
		if err := json.Unmarshal(line, &q); err != nil {
			return 0, fmt.Errorf("following the audit log: %w", err)
		}
		if q.counts() && q.byAny(agents) && q.Verb != "get" && q.Verb != "list" && q.Verb != "watch" {
			writes++
		}
	}
	return writes, nil
}

// lines reads on to the end of the last whole line.
func (f *Follower) lines() (_ []byte, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Seek(f.offset, io.SeekStart); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	f.offset += int64(len(content))
	content = append(f.rest, content...)
	whole := bytes.LastIndexByte(content, '\n') + 1
	f.rest = bytes.Clone(content[whole:])
	return content[:whole], nil
}
