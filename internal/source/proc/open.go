package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A FileID identifies a file, whatever paths lead to it, while it is open or mapped: an
// inode number is reused only after that.
type FileID struct{ Dev, Ino uint64 }

// A File is a regular file, open for reading. What is in it may change at any
// time if a process that is looked at may write it.
type File struct {
	*os.File
	ID    FileID // as stat(2) shows it
	Size  int64  // bytes, when it was opened
	Owner uint32 // user id
}

// closePatience bounds how long Close waits: a file system in user space may never answer.
const closePatience = 100 * time.Millisecond

// Close closes the file. If that takes long, it continues in the background.
func (f *File) Close() error {
	if f.closesAtOnce() {
		return f.File.Close()
	}
	done := make(chan error, 1)
	go func() { done <- f.File.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(closePatience):
		return nil
	}
}

// closesAtOnce reports whether the kernel closes a file that was only read without asking anybody.
// An agent closes several files of each process that starts; waiting for another goroutine took a
// tenth of its time. A layer of an overlay may lie in user space, so an overlay is not one of these.
func (f *File) closesAtOnce() bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &fs) != nil {
		return false
	}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.SQUASHFS_MAGIC, unix.EROFS_SUPER_MAGIC_V1:
		return true
	}
	return false
}

// Link returns a path that leads the kernel to this very file while it is open,
// whatever its own path leads to by then.
func (f *File) Link() string { return selfLink(int(f.Fd())) }

func selfLink(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// IsLink reports whether a path leads through /proc, as a File's Link does.
func IsLink(path string) bool { return strings.HasPrefix(path, "/proc/") }

// ErrIrregular is the error of opening what is no regular file.
var ErrIrregular = errors.New("not a regular file")

// ErrRemapped is the error of a mapping whose file cannot be found: the process
// maps another one there by now, and its path leads to another one, too.
var ErrRemapped = errors.New("no longer the file that was mapped")

// OpenMapped opens the very file that m maps. map_files leads to the inode,
// also of a deleted file or one of another mount namespace, but takes
// CAP_CHECKPOINT_RESTORE in the initial user namespace; without it, the path is
// tried in the process's root and in this one, and believed if it leads to the
// mapped inode. proc_pid_map_files(5).
//
// The process may map something else there at any moment. The file that is
// returned is one that it did map: the only thing to go by from then on is the
// descriptor.
func OpenMapped(pid int, m *Mapping) (*File, error) {
	f, err := openMapped(dirOf(pid), m)
	if err == nil {
		return f, nil
	}
	if thread := living(pid); thread != pid { // the first has ended, and shows nothing
		return openMapped(dirOf(thread), m)
	}
	return nil, err
}

func openMapped(dir string, m *Mapping) (*File, error) {
	link := fmt.Sprintf("%s/map_files/%x-%x", dir, m.Start, m.End)
	f, err := openRegular(unix.AT_FDCWD, link, 0)
	if err == nil {
		// Overlay may show another inode in maps than stat(2) does.
		if to, err := os.Readlink(link); m.maps(f) || err == nil && to == m.Path {
			return f, nil
		}
		f.Close()
		err = ErrRemapped
	}
	if errors.Is(err, ErrIrregular) || !m.HasFile() {
		return nil, fmt.Errorf("open what is mapped at %x: %w", m.Start, err)
	}
	// The kernel shows a path below the process's root; below a root set by
	// chroot alone, one of ours.
	for _, open := range []func(string) (*File, error){
		func(path string) (*File, error) {
			root, err := openRoot(dir)
			if err != nil {
				return nil, err
			}
			defer root.Close()
			return root.Open(path, 0)
		},
		Open,
	} {
		f, perr := open(m.Path)
		if perr != nil {
			continue
		}
		if m.maps(f) {
			return f, nil
		}
		f.Close()
		err = ErrRemapped // another file by the same name
	}
	return nil, fmt.Errorf("open what is mapped at %x: %w", m.Start, err)
}

// maps reports whether f is the mapped file.
func (m *Mapping) maps(f *File) bool {
	if m.File == f.ID {
		return true
	}
	var fs unix.Statfs_t
	return m.File.Ino == f.ID.Ino && unix.Fstatfs(int(f.Fd()), &fs) == nil &&
		(fs.Type == unix.OVERLAYFS_SUPER_MAGIC || fs.Type == unix.BTRFS_SUPER_MAGIC)
}

// OpenExecutable opens the program that a process runs, and returns its path as
// the kernel shows it.
func OpenExecutable(pid int) (f *File, path string, err error) {
	link := dirOf(pid) + "/exe"
	if f, err = openRegular(unix.AT_FDCWD, link, 0); err != nil {
		return nil, "", fmt.Errorf("open the program of process %d: %w", pid, err)
	}
	path, _ = os.Readlink(link)
	return f, linked(path), nil
}

// Open opens a file of this process's own root.
func Open(path string) (*File, error) {
	return openRegular(unix.AT_FDCWD, filepath.Clean(path), 0)
}

// A Root is the root directory that a process sees.
type Root struct {
	fd int
	ID FileID
}

// OpenRoot opens the root directory that a process sees.
func OpenRoot(pid int) (*Root, error) {
	return openRoot(dirOf(living(pid)))
}

func openRoot(dir string) (*Root, error) {
	fd, err := unix.Open(dir+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a process's root: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open a process's root: %w", err)
	}
	return &Root{fd, FileID{st.Dev, st.Ino}}, nil
}

// Open opens a file by its path below the root: no symbolic link leads out.
// resolve are further RESOLVE flags of openat2(2).
func (r *Root) Open(path string, resolve uint64) (*File, error) {
	return openRegular(r.fd, strings.TrimLeft(path, "/"), resolve|unix.RESOLVE_IN_ROOT)
}

// Close closes the root, but not the files opened below it.
func (r *Root) Close() error { return unix.Close(r.fd) }

// OpenMemory opens the memory of a process for reading at its addresses.
func OpenMemory(pid int) (*os.File, error) {
	return os.Open(dirOf(living(pid)) + "/mem")
}

// openRegular opens a regular file for reading. Nothing else is opened, not
// even for a moment: opening a device or a pipe has effects. resolve are flags
// of openat2(2).
func openRegular(dir int, path string, resolve uint64) (*File, error) {
	const flags = unix.O_PATH | unix.O_CLOEXEC
	var fd int
	var err error
	if resolve == 0 { // some sandboxes refuse openat2
		fd, err = unix.Openat(dir, path, flags, 0)
	} else {
		fd, err = unix.Openat2(dir, path, &unix.OpenHow{Flags: flags, Resolve: resolve})
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, ErrIrregular
	}
	// A file's owner may hold a lease on it, which blocks who opens it for as
	// long as /proc/sys/fs/lease-break-time says, but not with O_NONBLOCK.
	f, err := os.OpenFile(selfLink(fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return &File{f, FileID{st.Dev, st.Ino}, st.Size, st.Uid}, nil
}
