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

	"golang.org/x/sys/unix"
)

// Check reports why Write to path would fail, as far as can be known without
// creating anything: an error that wraps fs.ErrExist when the file is there
// and force is false, fs.ErrPermission or fs.ErrNotExist for its directory.
func Check(path string, force bool) error {
	return in(path, func(d *Dir, name string) error { return d.Check(name, force) })
}

// Write creates path with what content writes, as Dir.Write.
func Write(path string, force bool, content func(io.Writer) error) error {
	return in(path, func(d *Dir, name string) error { return d.Write(name, force, content) })
}

// in does something in the directory of path, with the last part of path.
func in(path string, do func(d *Dir, name string) error) error {
	d, err := OpenDir(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer d.Close()
	if err := do(d, filepath.Base(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Check reports why Write would fail, as the function Check.
func (d *Dir) Check(name string, force bool) error {
	if _, err := d.replaceable(name, force); err != nil {
		return err
	}
	if err := unix.Faccessat(d.fd(), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "write to directory", Path: d.path, Err: err}
	}
	return nil
}

// Write creates a file with what content writes. The file is complete and on
// disk under its name when Write returns nil; after an error what had the name is as it was
// and nothing else is left in the directory. An existing file is replaced only
// with force, and then keeps its permissions, of another user's file those alone that
// a new file has; a symbolic link is replaced, not followed. A new file's mode is 0644
// less the umask.
func (d *Dir) Write(name string, force bool, content func(io.Writer) error) error {
	old, err := d.replaceable(name, force)
	if err != nil {
		return err
	}
	// A name of its own that cannot be guessed.
	temp := ".gpumemtrace-" + rand.Text() + ".tmp"
	f, err := d.create(temp, 0o644)
	if err != nil {
		return err
	}
	// After a successful rename there is nothing of that name to remove.
	defer func() { _ = d.Remove(temp) }()
	defer f.Close()

	if old != nil && old.Mode&unix.S_IFMT == unix.S_IFREG {
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
	if err := d.place(temp, name, force); err != nil {
		return err
	}
	_ = d.file.Sync() // some file systems cannot; the contents are safe already
	return nil
}

// keepMode gives f the permissions of the file that it replaces. Another user may have
// put that there, open to all, to write into what takes its place.
func keepMode(f *os.File, old *unix.Stat_t) error {
	mode := fs.FileMode(old.Mode).Perm()
	if int(old.Uid) != os.Geteuid() {
		created, err := f.Stat()
		if err != nil {
			return err
		}
		mode &= created.Mode().Perm()
	}
	return f.Chmod(mode)
}

// replaceable returns the regular file or symbolic link that has a name, nil for none, or
// the reason why a file must not take its place.
func (d *Dir) replaceable(name string, force bool) (*unix.Stat_t, error) {
	var st unix.Stat_t
	switch err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	}
	is := st.Mode & unix.S_IFMT
	if is == unix.S_IFLNK {
		// /dev/stdout is a link too.
		var target unix.Stat_t
		if unix.Fstatat(d.fd(), name, &target, 0) == nil {
			is = target.Mode & unix.S_IFMT
		}
	}
	switch {
	case is == unix.S_IFDIR:
		return nil, errors.New("is a directory")
	case is != unix.S_IFREG && is != unix.S_IFLNK:
		return nil, errors.New("is not a regular file (use - for standard output)")
	case !force:
		return nil, fmt.Errorf("%w (use --force to replace it)", fs.ErrExist)
	}
	return &st, nil
}

// place gives the file temp a name. Without force, a file that came to
// be there since the check is kept.
func (d *Dir) place(temp, name string, force bool) error {
	if force {
		return unix.Renameat(d.fd(), temp, d.fd(), name)
	}
	err := unix.Linkat(d.fd(), temp, d.fd(), name, 0)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	// File systems without hard links (FAT, some network ones).
	err = unix.Renameat2(d.fd(), temp, d.fd(), name, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// Some network ones have neither.
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
		return errors.Join(fs.ErrExist, err)
	}
	return unix.Renameat(d.fd(), temp, d.fd(), name)
}
