//go:build !linux

package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// OpenDir opens a directory. Unlike on Linux, its files are found by their paths, and symbolic links of
// other users on those paths are followed.
func OpenDir(path string) (*Dir, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no directory %s: make it first, or name another: %w", path, err)
	}
	return &Dir{path: path, file: f}, err
}

// MakeDir is OpenDir that makes the directories which are missing, with a mode.
func MakeDir(path string, mode fs.FileMode) (*Dir, error) {
	if err := os.MkdirAll(path, mode); err != nil {
		return nil, err
	}
	return OpenDir(path)
}

// Own fails: no agent runs here.
func Own(*os.File) error { return errors.ErrUnsupported }

// Check reports why Write would fail, as the function Check.
func (d *Dir) Check(name string, force bool) error {
	_, err := d.replaceable(name, force)
	return err
}

// Names returns the names of what is in the directory, with what it is.
func (d *Dir) Names() ([]fs.DirEntry, error) { return os.ReadDir(d.path) }

// Changed returns when a file was last written to.
func (d *Dir) Changed(name string) (time.Time, error) {
	info, err := os.Lstat(d.at(name))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Remove removes a file, or a symbolic link, not what it leads to.
func (d *Dir) Remove(name string) error { return os.Remove(d.at(name)) }

func (d *Dir) at(name string) string { return filepath.Join(d.path, name) }

// create creates a file. O_EXCL follows no link.
func (d *Dir) create(name string, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(d.at(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

// keepMode takes from f the permissions that the file which it replaces does not have.
func keepMode(f *os.File, old fs.FileInfo) error {
	created, err := f.Stat()
	if err != nil || !old.Mode().IsRegular() {
		return err
	}
	return f.Chmod(created.Mode().Perm() & old.Mode().Perm())
}

// replaceable returns the regular file or symbolic link that has a name, nil for none, or
// the reason why a file must not take its place.
func (d *Dir) replaceable(name string, force bool) (fs.FileInfo, error) {
	old, err := os.Lstat(d.at(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	is := old.Mode()
	if target, err := os.Stat(d.at(name)); err == nil { // /dev/stdout is a link too
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
		f, err := d.create(name, 0o644) // takes the name
		if err != nil {
			return err
		}
		f.Close()
	}
	return os.Rename(d.at(temp), d.at(name))
}
