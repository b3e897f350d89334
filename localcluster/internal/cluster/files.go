package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// writeFile replaces a file in one step: who waits for it to appear never reads
// half of it. Everything here is for its owner only, since most of it is secret.
func writeFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = file.Write(content)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// lastLines returns up to n last lines of a file. It reads the end of the file
// only, since a log may be long.
func lastLines(path string, n int) (string, error) {
	const window = 64 << 10
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading the last lines of a log: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("reading the last lines of a log: %w", err)
	}
	start := max(0, info.Size()-window)
	content, err := io.ReadAll(io.NewSectionReader(file, start, window))
	if err != nil {
		return "", fmt.Errorf("reading the last lines of a log: %w", err)
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	if start > 0 {
		// The first one is most likely cut.
		lines = lines[1:]
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n"), nil
}
