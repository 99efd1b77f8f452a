// Package atomicfile writes a file whole or not at all: beside its target,
// synced, then put in place. Whatever goes wrong, a previous file survives.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Check reports why Write to path would fail, as far as can be known without
// creating anything: an error that wraps fs.ErrExist when the file is there
// and force is false, fs.ErrPermission or fs.ErrNotExist for its directory.
func Check(path string, force bool) error {
	if _, err := replaceable(path, force); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	} else if !info.IsDir() {
		return fmt.Errorf("write %s: %s is not a directory", path, dir)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("write %s: %w", path, &fs.PathError{Op: "write to directory", Path: dir, Err: err})
	}
	return nil
}

// Write creates path with what content writes. The file is complete and on
// disk under its name when Write returns nil; after an error path is as it was
// and nothing else is left in its directory. An existing file is replaced only
// with force, and then keeps its permissions, of another user's file those alone that
// a new file has; a symbolic link is replaced, not followed. A new file's mode is 0644
// less the umask.
func Write(path string, force bool, content func(io.Writer) error) (err error) {
	old, err := replaceable(path, force)
	if err != nil {
		return err
	}
	// A name of its own that cannot be guessed; O_EXCL follows no link.
	dir := filepath.Dir(path)
	f, err := os.OpenFile(filepath.Join(dir, ".gpumemtrace-"+rand.Text()+".tmp"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	// After a successful rename there is nothing of that name to remove.
	defer os.Remove(f.Name())
	defer f.Close()

	if old != nil {
		if err := keepMode(f, old); err != nil {
			return err
		}
	}
	if err := content(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := place(f.Name(), path, force); err != nil {
		return err
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // some file systems cannot; the contents are safe already
		d.Close()
	}
	return nil
}

// keepMode gives f the permissions of the file that it replaces. Another user may have
// put that there, open to all, to write into what takes its place.
func keepMode(f *os.File, old fs.FileInfo) error {
	mode := old.Mode().Perm()
	if stat, ok := old.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		created, err := f.Stat()
		if err != nil {
			return err
		}
		mode &= created.Mode().Perm()
	}
	return f.Chmod(mode)
}

// replaceable returns the regular file at path, nil for none, or the reason why Write
// must not put a file there.
func replaceable(path string, force bool) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	link := info.Mode().Type() == fs.ModeSymlink
	if link {
		// /dev/stdout is a link too.
		if target, err := os.Stat(path); err == nil {
			info = target
		}
	}
	switch {
	case info.IsDir():
		return nil, fmt.Errorf("write %s: is a directory", path)
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink:
		return nil, fmt.Errorf("write %s: is not a regular file (use - for standard output)", path)
	case !force:
		return nil, fmt.Errorf("write %s: %w (use --force to replace it)", path, fs.ErrExist)
	case link:
		return nil, nil
	}
	return info, nil
}

// place gives the file temp the name path. Without force, a file that came to
// be there since the check is kept.
func place(temp, path string, force bool) error {
	if force {
		return os.Rename(temp, path)
	}
	err := os.Link(temp, path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	// File systems without hard links (FAT, some network ones).
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	return os.Rename(temp, path)
}
