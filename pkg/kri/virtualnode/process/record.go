package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Record is the latest attempt of a container, as kept on disk.
type Record struct {
	Pod     types.UID `json:"pod"`
	Name    string    `json:"name"`
	Attempt int       `json:"attempt"`
	PID     int       `json:"pid"`
	// StartTicks and MachineBoot tell the process from a later one with the
	// same PID: field 22 of /proc/<pid>/stat, and the kernel's boot ID.
	StartTicks  uint64    `json:"startTicks"`
	MachineBoot string    `json:"machineBoot"`
	StartedAt   time.Time `json:"startedAt"`

	Exited     bool      `json:"exited,omitempty"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// ExitCode is 128+signal for a process that a signal ended, and 137 where
	// the agent was not there to see (Lost).
	ExitCode int  `json:"exitCode,omitempty"`
	Signal   int  `json:"signal,omitempty"`
	Lost     bool `json:"lost,omitempty"`
}

// ID names the record's container.
func (r Record) ID() ID { return ID{Pod: r.Pod, Name: r.Name} }

const stateFile = "state.json"

// WriteJSON replaces a file atomically.
func WriteJSON(path string, value any) error {
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// ReadJSON reads a file that WriteJSON wrote.
func ReadJSON(path string, value any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, value); err != nil {
		return fmt.Errorf("decoding %s: %w", path, err)
	}
	return nil
}

func (r *Runtime) save(rec Record) error {
	if err := WriteJSON(filepath.Join(r.Dir(rec.ID()), stateFile), rec); err != nil {
		return fmt.Errorf("saving the state of container %s: %w", rec.Name, err)
	}
	return nil
}

// load reads the records of all containers below the root.
func (r *Runtime) load() ([]Record, error) {
	paths, err := filepath.Glob(filepath.Join(r.cfg.Root, "pods", "*", "containers", "*", stateFile))
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, path := range paths {
		var rec Record
		err := ReadJSON(path, &rec)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the state of a container: %w", err)
		}
		out = append(out, rec)
	}
	return out, nil
}

// stat is what /proc/<pid>/stat tells.
type stat struct {
	state  byte
	pgrp   int
	ticks  uint64
	parsed bool
}

func readStat(pid int) stat {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}
	}
	return parseStat(string(b))
}

// parseStat skips the command name, which may hold blanks and parentheses.
func parseStat(line string) stat {
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}
	}
	pgrp, err1 := strconv.Atoi(fields[2])
	ticks, err2 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil {
		return stat{}
	}
	return stat{state: fields[0][0], pgrp: pgrp, ticks: ticks, parsed: true}
}

// alive reports whether the process runs: a zombie does not.
func (s stat) alive() bool { return s.parsed && s.state != 'Z' && s.state != 'X' }

func machineBoot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
