package userfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Whatever a path leads to, opening it returns at once, and only a regular file opens.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("content"), 0o600),
		os.Symlink("file", at("link")),
		os.Symlink("nowhere", at("dangling")),
		syscall.Mkfifo(at("pipe"), 0o600),
		os.Symlink("pipe", at("to a pipe")),
	); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for path, want := range map[string]error{
		at("file"): nil, at("link"): nil,
		at("missing"): fs.ErrNotExist, at("dangling"): fs.ErrNotExist,
		at("pipe"): ErrNotRegular, at("to a pipe"): ErrNotRegular, at("socket"): ErrNotRegular,
		dir: ErrNotRegular, os.DevNull: ErrNotRegular, "/dev/zero": ErrNotRegular,
	} {
		f, info, err := Open(path)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err != nil {
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %q does not name the file", path, err)
			}
			continue
		}
		if flags, _, no := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_GETFD, 0); no != 0 || flags&syscall.FD_CLOEXEC == 0 {
			t.Errorf("%s: a command that is started inherits it", path)
		}
		if info.Size() != int64(len("content")) {
			t.Errorf("%s: %d bytes", path, info.Size())
		}
		f.Close()
	}
}

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, _, err := Read(path, 7); err != nil || string(b) != "content" {
		t.Errorf("%q, %v", b, err)
	}
	if _, _, err := Read(path, 6); err == nil || !strings.Contains(err.Error(), "larger than 6 bytes") {
		t.Errorf("%v", err)
	}
}
