package server

import (
	"context"
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

// ListenSocket listens at a unix socket. Root, the user of this process and the members of the
// group can connect. The group may be "" for none. ListenSocket makes the socket's folder.
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
	// The file gets the socket's mode, so nobody else can connect before it has its group.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if gid >= 0 {
		if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660)); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l.(*net.UnixListener), nil
}

// removeOld removes a socket that a killed process left.
func removeOld(path string) error {
	i, err := os.Lstat(path)
	if err != nil || i.Mode().Type() != fs.ModeSocket {
		return nil // Listen says what is wrong
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

// Share returns a second listener at the same socket. Closing it leaves the first one open.
func Share(l *net.UnixListener) (net.Listener, error) {
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	shared, err := net.FileListener(f)
	return shared, errors.Join(err, f.Close())
}
