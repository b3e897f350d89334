package usage

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory of a process, in MiB.
type Memory struct {
	// Resident is what it has now, Peak the most it has ever had.
	Resident float64 `json:"residentMiB"`
	Peak     float64 `json:"peakMiB"`
}

// ReadMemory reads that of a process.
func ReadMemory(pid int) (Memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	return parseMemory(string(status))
}

func parseMemory(status string) (m Memory, err error) {
	for _, field := range []struct {
		name string
		into *float64
	}{{"VmRSS:", &m.Resident}, {"VmHWM:", &m.Peak}} {
		_, rest, found := strings.Cut(status, field.name)
		if !found {
			return m, errors.New("the status of the process tells no " + field.name)
		}
		line, _, _ := strings.Cut(rest, "\n")
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 64)
		if err != nil {
			return m, fmt.Errorf("reading %s of the process: %w", field.name, err)
		}
		*field.into = kib / 1024
	}
	return m, nil
}

// Load is the machine's load over the last minute, empty where it is not told.
func Load() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(content), " ")
	return first
}
