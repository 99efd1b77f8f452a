//go:build linux

package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// OpenDir opens a directory. On the way to it, a symbolic link that another user may have
// put there is an error: in a directory that several users may write to, a link is followed
// only if it belongs to this user, to root, or to the owner of the directory, as Linux does
// where fs.protected_symlinks is set. The owner has no say in a directory that lies in a
// shared one itself, and may be a stranger's.
func OpenDir(path string) (*Dir, error) { return openDir(path, 0) }

// MakeDir is OpenDir that makes the directories which are missing, with a mode.
func MakeDir(path string, mode fs.FileMode) (*Dir, error) { return openDir(path, mode) }

// maxLinks is how many symbolic links there may be on the way to a directory, as in Linux.
const maxLinks = 40

// openDir makes missing directories if mode is not 0.
func openDir(path string, mode fs.FileMode) (*Dir, error) {
	failed := func(name string, err error) (*Dir, error) {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no directory %s: make it first, or name another: %w", name, err)
		}
		return nil, &fs.PathError{Op: "open directory", Path: name, Err: err}
	}
	begin := func(path string) (int, error) {
		root := "."
		if filepath.IsAbs(path) {
			root = "/"
		}
		return unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	at, err := begin(path)
	if err != nil {
		return failed(path, err)
	}
	defer func() { unix.Close(at) }()
	in := visited{}
	if err := in.enter(at); err != nil {
		return failed(path, err)
	}
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && mode != 0 {
			if err = unix.Mkdirat(at, name, uint32(mode.Perm())); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			}
		}
		if err != nil {
			return failed(path, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return failed(path, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(at)
			at = next
			if err := in.enter(at); err != nil {
				return failed(path, err)
			}
			continue
		}
		target, err := readlink(next)
		kernels := ofKernel(next)
		unix.Close(next)
		if err != nil {
			return failed(path, err)
		}
		if kernels {
			if next, err = unix.Openat(at, name, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
				return failed(path, err)
			}
			unix.Close(at)
			at, in = next, visited{}
			if err := in.enter(at); err != nil {
				return failed(path, err)
			}
			continue
		}
		if links++; links > maxLinks {
			return failed(path, unix.ELOOP)
		}
		if !in.trusts(st.Uid) {
			return failed(path, fmt.Errorf("the symbolic link %s belongs to user %d and lies in a directory of several users: name what it leads to, if that is meant", name, st.Uid))
		}
		if filepath.IsAbs(target) {
			unix.Close(at)
			if at, err = begin(target); err != nil {
				return failed(path, err)
			}
			in = visited{}
			if err := in.enter(at); err != nil {
				return failed(path, err)
			}
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) { // files can be made in it without reading it
		fd, err = unix.Openat(at, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return failed(path, err)
	}
	return &Dir{path: path, file: os.NewFile(uintptr(fd), path)}, nil
}

func readlink(fd int) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err == nil && (n == 0 || n == len(b)) {
		err = unix.ENAMETOOLONG
	}
	return string(b[:max(n, 0)]), err
}

// ofKernel reports whether fd is a link of /proc, which leads elsewhere than its text says.
func ofKernel(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC
}

// A visited is a directory on the way to another.
type visited struct {
	owner    uint32
	shared   bool // others may write to it
	strange  bool // a stranger may have made it, or one on the way to it
	anywhere bool // another was visited before
}

// enter goes on to the directory fd.
func (v *visited) enter(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	strange := v.strange || v.anywhere && v.shared && !v.trusts(st.Uid)
	*v = visited{owner: st.Uid, shared: st.Mode&0o022 != 0, strange: strange, anywhere: true}
	return nil
}

// trusts reports whether what is in the directory and belongs to a user was put there by
// somebody who may say where this user writes.
func (v *visited) trusts(user uint32) bool {
	switch {
	case user == 0 || int(user) == os.Geteuid():
		return true
	case v.strange:
		return false
	}
	return !v.shared || user == v.owner
}

func (d *Dir) fd() int { return int(d.file.Fd()) }

// Names returns the names of what is in the directory, with what it is.
func (d *Dir) Names() ([]fs.DirEntry, error) {
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "read directory", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	return f.ReadDir(-1)
}

// Changed returns when a regular file was last written to.
func (d *Dir) Changed(name string) (time.Time, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
	}
	if err != nil {
		return time.Time{}, &fs.PathError{Op: "look at", Path: filepath.Join(d.path, name), Err: err}
	}
	return time.Unix(st.Mtim.Unix()), nil
}

// Remove removes a file, or a symbolic link, not what it leads to.
func (d *Dir) Remove(name string) error {
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil {
		return &fs.PathError{Op: "remove", Path: filepath.Join(d.path, name), Err: err}
	}
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
func (d *Dir) create(name string, mode uint32) (*os.File, error) {
	path := filepath.Join(d.path, name)
	fd, err := unix.Openat(d.fd(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
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

// keepMode gives f the permissions of the file that it replaces. Another user may have
// put that there, open to all, to write into what takes its place. A link's do not count.
func keepMode(f *os.File, old *unix.Stat_t) error {
	if old.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
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
