// Package atomicfile writes a file whole or not at all: beside its target,
// synced, then put in place. Whatever goes wrong, a previous file survives.
package atomicfile

import (
	"crypto/rand"
	"fmt"
	"io"
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
	path string
	file *os.File
}

// Close closes the directory.
func (d *Dir) Close() error { return d.file.Close() }

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
