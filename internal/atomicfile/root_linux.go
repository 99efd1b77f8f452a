package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links there may be on the way to a directory, as in Linux.
const maxLinks = 40

// openRoot opens a directory, on whose path no link is a stranger's, and makes missing
// ones if mode is not 0.
func openRoot(path string, mode fs.FileMode) (*os.Root, error) {
	at, err := walk(path, mode)
	if err != nil {
		return nil, err
	}
	found := os.NewFile(uintptr(at), path)
	defer found.Close()
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	want, err := found.Stat()
	if err == nil {
		var got fs.FileInfo
		if got, err = root.Stat("."); err == nil && !os.SameFile(got, want) {
			err = errors.New("the path leads elsewhere by now")
		}
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// walk returns the directory that a path leads to.
func walk(path string, mode fs.FileMode) (_ int, err error) {
	begin := func(path string) (int, error) {
		root := "."
		if filepath.IsAbs(path) {
			root = "/"
		}
		return unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	at, err := begin(path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			unix.Close(at)
		}
	}()
	in := visited{}
	if err := in.enter(at); err != nil {
		return 0, err
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
			return 0, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return 0, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(at)
			at = next
			if err := in.enter(at); err != nil {
				return 0, err
			}
			continue
		}
		target, err := readlink(next)
		kernels := ofKernel(next)
		unix.Close(next)
		if err != nil {
			return 0, err
		}
		if kernels {
			if next, err = unix.Openat(at, name, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
				return 0, err
			}
			unix.Close(at)
			at, in = next, visited{}
			if err := in.enter(at); err != nil {
				return 0, err
			}
			continue
		}
		if links++; links > maxLinks {
			return 0, unix.ELOOP
		}
		if !in.trusts(st.Uid) {
			return 0, fmt.Errorf("the symbolic link %s belongs to user %d and lies in a directory of several users: name what it leads to, if that is meant", name, st.Uid)
		}
		if filepath.IsAbs(target) {
			unix.Close(at)
			if at, err = begin(target); err != nil {
				return 0, err
			}
			in = visited{}
			if err := in.enter(at); err != nil {
				return 0, err
			}
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, nil
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

// writable reports why no file can be made in a directory.
func writable(d *os.File) error {
	return unix.Faccessat(int(d.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// mine reports whether a file belongs to this user.
func mine(f fs.FileInfo) bool { return int(f.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() }

// Own fails unless an open directory is this user's, and nobody else may write to it:
// others could put files there in place of ours, and remove them. The error says what to
// do.
func Own(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	path := filepath.Clean(dir.Name()) // it ends in a dot
	switch me := os.Geteuid(); {
	case int(st.Uid) != me:
		return fmt.Errorf("%s belongs to user %d, and must be of user %d: name another directory, or chown it", path, st.Uid, me)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others may write to %s: name another directory, or chmod go-w it", path)
	}
	return nil
}
