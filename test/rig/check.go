package rig

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// Line is one line that a writer appended.
type Line struct {
	Number int64
	// Nanos is when it was written, in Unix nanoseconds.
	Nanos int64
	// Writer is pod UID@node.
	Writer string
}

// ParseLines reads the file of a writer. A last line without its end was never
// synced and does not count.
func ParseLines(content []byte) ([]Line, error) {
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	var lines []Line
	scanner := bufio.NewScanner(bytes.NewReader(content))
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d is torn: %q", len(lines)+1, scanner.Text())
		}
		number, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d is torn: %w", len(lines)+1, err)
		}
		nanos, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d is torn: %w", len(lines)+1, err)
		}
		lines = append(lines, Line{Number: number, Nanos: nanos, Writer: fields[2]})
	}
	return lines, scanner.Err()
}

// CheckLines finds what must never be in such a file: a number missing or
// twice, and two writers whose lines alternate. synced holds, by writer, the
// highest number that the writer was told is safe.
func CheckLines(lines []Line, synced map[string]int64) error {
	done := map[string]bool{}
	for i, line := range lines {
		if want := int64(i + 1); line.Number != want {
			return fmt.Errorf("line %d carries number %d: lines were lost or doubled", want, line.Number)
		}
		if i > 0 && lines[i-1].Writer != line.Writer {
			if done[line.Writer] {
				return fmt.Errorf("line %d: %s writes again after %s: two writers", line.Number, line.Writer, lines[i-1].Writer)
			}
			done[lines[i-1].Writer] = true
		}
	}
	for writer, number := range synced {
		if number == 0 {
			continue
		}
		if number > int64(len(lines)) || lines[number-1].Writer != writer {
			return fmt.Errorf("line %d, synced by %s, is not in the file", number, writer)
		}
	}
	return nil
}

// ParseSynced reads a writer's own log: the highest number synced, and whether
// it met an error afterwards.
func ParseSynced(log []byte) (number int64, failed bool) {
	for _, line := range strings.Split(string(log), "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 3 && fields[0] == "synced":
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				number, failed = n, false
			}
		case len(fields) > 1 && fields[0] == "error":
			failed = true
		}
	}
	return number, failed
}

// VolumeFile reads a file of a volume, by the name of its claim or of its
// PersistentVolume, where the driver keeps it, past every node.
func (r *Rig) VolumeFile(volume, name string) ([]byte, error) {
	handle, err := r.Handle(volume)
	if err != nil {
		return nil, err
	}
	store, err := state.New(state.Config{Dir: r.StateDir()})
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(store.DataDir(handle), name))
}

// Lines reads the writer's file of a volume.
func (r *Rig) Lines(volume string) ([]Line, error) {
	content, err := r.VolumeFile(volume, "log")
	if err != nil {
		return nil, err
	}
	return ParseLines(content)
}

// CheckVolume checks the file of a volume against what every writer that ever
// ran on it was told. uids are the pods that ran.
func (r *Rig) CheckVolume(volume string, uids ...string) (lines []Line, err error) {
	// What was synced is read before the file: a line may be added meanwhile.
	synced := map[string]int64{}
	for _, node := range r.Nodes {
		for _, uid := range uids {
			logs, err := filepath.Glob(node.ContainerLogs(uid))
			if err != nil {
				return nil, err
			}
			for _, path := range logs {
				log, err := os.ReadFile(path)
				if err != nil {
					return nil, err
				}
				synced[uid+"@"+node.Name], _ = ParseSynced(log)
			}
		}
	}
	if lines, err = r.Lines(volume); err != nil {
		return nil, err
	}
	return lines, CheckLines(lines, synced)
}
