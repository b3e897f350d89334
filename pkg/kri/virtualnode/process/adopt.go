package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Adopt reads what is on disk, takes living containers over, and kills
// processes of this root that belong to no living container: members of a group
// whose leader died, or a process that started just before a crash. It returns
// the number of containers adopted and of processes killed.
func (r *Runtime) Adopt() (adopted, killed int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	recs, err := r.load()
	if err != nil {
		return 0, 0, err
	}
	boot := machineBoot()
	groups := map[int]bool{}
	for _, p := range r.running {
		groups[p.pid] = true
	}
	for _, rec := range recs {
		if r.running[rec.ID()] != nil {
			continue
		}
		if !rec.Exited && rec.MachineBoot == boot && r.adopt(rec) {
			adopted++
			groups[rec.PID] = true
			continue
		}
		if err := r.recordLost(rec); err != nil {
			return adopted, 0, err
		}
	}
	killed, err = r.killStrays(groups)
	return adopted, killed, err
}

func (r *Runtime) adopt(rec Record) bool {
	handle, err := openPidfd(rec.PID)
	if err != nil {
		return false
	}
	// The pidfd pins the process: what is read now is true of what it names.
	if st := readStat(rec.PID); !st.alive() || st.ticks != rec.StartTicks {
		_ = handle.Close()
		return false
	}
	r.watch(rec, &proc{pid: rec.PID, handle: handle, done: make(chan struct{})})
	return true
}

func (r *Runtime) recordLost(rec Record) error {
	if !rec.Exited {
		rec.Exited, rec.Lost, rec.ExitCode = true, true, lostExitCode
		rec.FinishedAt = r.cfg.Clock.Now()
		if err := r.save(rec); err != nil {
			return err
		}
	}
	r.records[rec.ID()] = rec
	return nil
}

// killStrays kills processes that carry the marker of this root outside the
// given groups.
func (r *Runtime) killStrays(groups map[int]bool) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("looking for leftover processes: %w", err)
	}
	prefix := []byte(markerVar + "=" + filepath.Join(r.cfg.Root, "pods") + "/")
	killed := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if killStray(pid, prefix, groups) {
			killed++
		}
	}
	return killed, nil
}

func killStray(pid int, prefix []byte, groups map[int]bool) bool {
	handle, err := openPidfd(pid)
	if err != nil {
		return false
	}
	defer func() { _ = handle.Close() }()
	if st := readStat(pid); !st.alive() || groups[st.pgrp] || !hasMarker(pid, prefix) {
		return false
	}
	return unix.PidfdSendSignal(int(handle.Fd()), unix.SIGKILL, nil, 0) == nil
}

func hasMarker(pid int, prefix []byte) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(v, prefix) {
			return true
		}
	}
	return false
}

// CommandLine returns the command of a process, for people.
func CommandLine(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
}
