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

// A Dir is an open directory in which files are written. What becomes of the path that led
// to it makes no difference any more.
type Dir struct {
	*os.Root
	path string
	file *os.File
}

// OpenDir opens a directory. On Linux, a symbolic link that another user may have put on the
// way to it is an error: in a directory that several users may write to, a link is followed
// only if it belongs to this user, to root, or to the owner of the directory, as Linux does
// where fs.protected_symlinks is set. The owner has no say in a directory that lies in a
// shared one itself, and may be a stranger's.
func OpenDir(path string) (*Dir, error) { return openDir(path, 0) }

// MakeDir is OpenDir that makes the directories which are missing, with a mode.
func MakeDir(path string, mode fs.FileMode) (*Dir, error) { return openDir(path, mode) }

func openDir(path string, mode fs.FileMode) (*Dir, error) {
	root, err := openRoot(path, mode)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no directory %s: make it first, or name another: %w", path, err)
	case err != nil:
		return nil, &fs.PathError{Op: "open directory", Path: path, Err: err}
	}
	file, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	return &Dir{Root: root, path: path, file: file}, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return errors.Join(d.file.Close(), d.Root.Close()) }

// File is the open directory, for its lock.
func (d *Dir) File() *os.File { return d.file }

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
	if err := d.place(temp, name, force); err != nil {
		return err
	}
	_ = d.file.Sync() // some file systems cannot; the contents are safe already
	return nil
}

// Create creates a file that its owner alone may read, to be written in place. A regular
// file or a symbolic link that has the name is removed with force: whoever has it open, or
// owns it, has no part in the new one. Else it is an error that wraps fs.ErrExist.
func (d *Dir) Create(name string, force bool) (*os.File, error) {
	old, err := d.replaceable(name, force)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return d.create(name, 0o600)
}

// create creates a file. O_EXCL follows no link.
func (d *Dir) create(name string, mode fs.FileMode) (*os.File, error) {
	return d.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

// Check reports why Write would fail, as the function Check.
func (d *Dir) Check(name string, force bool) error {
	if _, err := d.replaceable(name, force); err != nil {
		return err
	}
	if err := writable(d.file); err != nil {
		return &fs.PathError{Op: "write to directory", Path: d.path, Err: err}
	}
	return nil
}

// keepMode gives f the permissions of the file that it replaces. Another user may have
// put that there, open to all, to write into what takes its place. A link's do not count.
func keepMode(f *os.File, old fs.FileInfo) error {
	created, err := f.Stat()
	if err != nil || !old.Mode().IsRegular() {
		return err
	}
	mode := old.Mode().Perm()
	if !mine(old) {
		mode &= created.Mode().Perm()
	}
	return f.Chmod(mode)
}

// replaceable returns the regular file or symbolic link that has a name, nil for none, or
// the reason why a file must not take its place.
func (d *Dir) replaceable(name string, force bool) (fs.FileInfo, error) {
	old, err := d.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	is := old.Mode()
	if target, err := os.Stat(filepath.Join(d.path, name)); err == nil && is.Type() == fs.ModeSymlink { // as /dev/stdout
		is = target.Mode()
	}
	switch {
	case is.IsDir():
		return nil, errors.New("is a directory")
	case !is.IsRegular() && is.Type() != fs.ModeSymlink:
		return nil, errors.New("is not a regular file (use - for standard output)")
	case !force:
		return nil, fmt.Errorf("%w (use --force to replace it)", fs.ErrExist)
	}
	return old, nil
}

// place gives the file temp a name. Without force, a file that came to
// be there since the check is kept.
func (d *Dir) place(temp, name string, force bool) error {
	if !force {
		if err := d.Link(temp, name); err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
		f, err := d.create(name, 0o600) // takes the name, where file systems have no hard links
		if err != nil {
			return err
		}
		f.Close()
	}
	err := d.Rename(temp, name)
	if err != nil && !force {
		_ = d.Remove(name)
	}
	return err
}
