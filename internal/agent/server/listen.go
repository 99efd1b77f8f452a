package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// ListenSocket listens at a unix socket, to which root, the user of this process and the members
// of a group can connect. A group of "" is none. The folder of the socket is made if it lacks.
func ListenSocket(path, group string) (*net.UnixListener, error) {
	l, err := listenSocket(path, group)
	if err != nil {
		return nil, fmt.Errorf("listen at a socket: %w", err)
	}
	return l, nil
}

func listenSocket(path, group string) (*net.UnixListener, error) {
	gid := -1
	if group != "" {
		g, err := user.LookupGroup(group)
		if err != nil {
			return nil, err
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := removeOld(path); err != nil {
		return nil, err
	}
	// Nobody else can connect before the socket has its group. A file that another goroutine
	// makes meanwhile is less open than it asks for.
	before := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(before)
	if err != nil || gid < 0 {
		return l, err
	}
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeOld removes a socket that a killed process left.
func removeOld(path string) error {
	i, err := os.Lstat(path)
	if err != nil || i.Mode().Type() != fs.ModeSocket {
		return nil // ListenUnix says what is wrong
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("another process listens at %s: give this one another --socket, or off", path), c.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// Share returns a second listener at the same socket. To close it leaves the first one open.
func Share(l *net.UnixListener) (net.Listener, error) {
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	shared, err := net.FileListener(f)
	return shared, errors.Join(err, f.Close())
}
