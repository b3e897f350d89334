// Command writer is a small database: it appends numbered, timestamped lines to
// a file and syncs each, goes on from the last line it finds, and goes on
// trying when writing fails. What was synced is told on stdout, which is not
// on the volume.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	path := flag.String("file", "data/log", "file to append to")
	every := flag.Duration("interval", 10*time.Millisecond, "time between two lines")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	w := &writer{path: *path, id: os.Getenv("POD_UID") + "@" + os.Getenv("NODE_NAME")}
	ticker := time.NewTicker(*every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		w.step()
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

type writer struct {
	path, id string
	file     *os.File
	last     int64
	problem  string
	failures int
}

// tellEvery is how many failures in a row are told in one line.
const tellEvery = 50

// step writes one line. After a failure it opens the file anew and looks what
// became of the line: a database recovers in the same way.
func (w *writer) step() {
	if err := w.append(); err != nil {
		if err.Error() != w.problem || w.failures%tellEvery == 0 {
			w.problem = err.Error()
			fmt.Printf("error %d %s\n", w.last+1, w.problem)
		}
		w.failures++
		if w.file != nil {
			_ = w.file.Close()
			w.file = nil
		}
		return
	}
	w.problem, w.failures = "", 0
	fmt.Printf("synced %d %d\n", w.last, time.Now().UnixNano())
}

func (w *writer) append() error {
	if w.file == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	line := fmt.Sprintf("%d %d %s\n", w.last+1, time.Now().UnixNano(), w.id)
	if _, err := w.file.WriteString(line); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.last++
	return nil
}

// open finds the last number in the file.
func (w *writer) open() error {
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	content, err := io.ReadAll(f)
	if err != nil {
		_ = f.Close()
		return err
	}
	w.file, w.last = f, 0
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	if fields := strings.Fields(lines[len(lines)-1]); len(fields) == 3 {
		if w.last, err = strconv.ParseInt(fields[0], 10, 64); err != nil {
			return err
		}
	}
	return nil
}
