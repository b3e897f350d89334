package csiclient

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxSocketPath is sizeof(sockaddr_un.sun_path) on Linux less its final NUL.
const maxSocketPath = 107

// socketPath reads an address: an absolute path, or unix:///path.
func socketPath(address string) (string, error) {
	path := address
	if strings.Contains(address, ":") && !filepath.IsAbs(address) {
		u, err := url.Parse(address)
		if err != nil {
			return "", fmt.Errorf("reading address %q: %w", address, err)
		}
		if u.Scheme != "unix" || u.Host != "" {
			return "", fmt.Errorf("address %q is not supported: give the absolute path of the driver's unix socket, or unix:///path", address)
		}
		path = u.Path
		if u.Opaque != "" {
			path = u.Opaque
		}
	}
	switch {
	case path == "":
		return "", errors.New("no address given: name the driver's unix socket, such as /csi/csi.sock")
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("socket path %q is not absolute", path)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("socket path %q has %d bytes; the kernel takes %d at most", path, len(path), maxSocketPath)
	}
	return path, nil
}

// inspectSocket looks at the path before it is dialled, since the kernel's own
// answer to dialling a directory or a file is a mere "connection refused".
func inspectSocket(path string) (os.FileInfo, *Problem) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Problem{
			What: "there is no socket at " + path,
			Do:   "start the driver, and see that both containers mount the same volume there",
		}
	case err != nil:
		return nil, &Problem{
			What: "the socket " + path + " cannot be looked at",
			Do:   "see that the path leads to the driver's socket and may be read",
			Err:  err,
		}
	case info.Mode().Type() != fs.ModeSocket:
		return nil, &Problem{
			What:      fmt.Sprintf("%s is %s and not a unix socket", path, kindOf(info.Mode())),
			Do:        "set --csi-address to the socket that the driver listens on",
			Permanent: true,
		}
	}
	return info, nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode.IsRegular():
		return "a regular file"
	default:
		return "a special file (" + mode.Type().String() + ")"
	}
}

// dialProblem explains a failed connect(2).
func dialProblem(path string, err error) *Problem {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return &Problem{
			What: "nobody listens on " + path,
			Do:   "see whether the driver's container runs; the socket was left behind by a driver that is gone",
			Err:  err,
		}
	case errors.Is(err, fs.ErrPermission):
		return &Problem{
			What: "the socket " + path + " may not be opened by this user",
			Do:   "run both containers with the same user or group, or loosen the socket's mode",
			Err:  err,
		}
	default:
		return &Problem{What: "the socket " + path + " cannot be dialled", Do: "see whether the driver's container runs", Err: err}
	}
}
