// Package usage tells what programs use of the machine.
package usage

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CPU is how many seconds of it the programs have used, by name: the control
// plane's components, the driver, the side and the bench itself.
type CPU map[string]float64

// ticks of the clock that /proc counts in, per second.
const ticks = 100

// ReadCPU looks at all processes that run from this process' folder of programs,
// and at this one. What cannot be read is left out.
func ReadCPU() CPU {
	used := CPU{}
	self, err := os.Executable()
	if err != nil {
		return used
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		dir := filepath.Dir(path)
		if exe, err := os.Readlink(filepath.Join(dir, "exe")); err != nil || filepath.Dir(exe) != filepath.Dir(self) {
			continue
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		used[programName(line)] += parseCPU(string(stat))
	}
	return used
}

// programName is the component for localcluster, else the program.
func programName(cmdline []byte) string {
	words := bytes.Split(cmdline, []byte{0})
	name := filepath.Base(string(words[0]))
	if name == "localcluster" && len(words) > 1 {
		return string(words[1])
	}
	return name
}

// parseCPU adds up the seconds in user and system mode of a line of
// /proc/PID/stat. The name, in parentheses, may hold anything.
func parseCPU(stat string) (seconds float64) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const user, system = 11, 12 // after the name
	if len(fields) <= system {
		return 0
	}
	for _, field := range []string{fields[user], fields[system]} {
		n, _ := strconv.ParseFloat(field, 64)
		seconds += n / ticks
	}
	return seconds
}

// Since is what has been used since before.
func (c CPU) Since(before CPU) CPU {
	used := CPU{}
	for name, seconds := range c {
		if d := seconds - before[name]; d >= 0.01 {
			used[name] = d
		}
	}
	return used
}
