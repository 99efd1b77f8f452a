package filememo

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A directory is a store of one file an entry. The time of a file's last change
// (mtime) is that of its last use.
type directory struct {
	dir     *os.File
	limit   int64
	writes  chan kept
	pending sync.WaitGroup // of writes
	failed  func()         // a write did

	room int64 // bytes that may be written before the directory is looked through
}

var errTooLarge = errors.New("the value is too large for the cache")

const (
	// maxWaiting bounds the entries that wait to be written.
	maxWaiting  = 1 << 10
	entrySuffix = ".memo"
	// Files that are being written end so; one that nobody wrote to for so long
	// was left by a crash.
	partSuffix = ".part"
	abandoned  = time.Minute
	// Between two looks through the directory one part in so many of the limit is
	// written: so much each further process that uses it may exceed it by.
	credit = 8
	// maxFiles bounds the files of one directory that are looked at.
	maxFiles = 1 << 16
)

// openDirectory opens, and if need be makes, a directory that only this process's
// user may look into. What leads to it is the user's to choose; what it is is
// checked on the descriptor, and nothing but the descriptor is used from then on.
func openDirectory(path string, limit int64, failed func()) (*directory, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	d := &directory{
		dir: os.NewFile(uintptr(fd), path), limit: limit, failed: failed,
		writes: make(chan kept, maxWaiting),
	}
	if err := own(fd, unix.S_IFDIR); err != nil {
		d.dir.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	go func() {
		for k := range d.writes {
			if d.write(k.name, k.entry) != nil {
				d.failed()
			}
			d.pending.Done()
		}
	}()
	return d, nil
}

// own fails unless the open file is of the type, the effective user's, and nobody
// else's to read or write.
func own(fd int, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != kind:
		return fmt.Errorf("not the type of file: %w", errForeign)
	case st.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("it belongs to user %d: %w", st.Uid, errForeign)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("others may use it (mode %#o): %w", st.Mode&0o777, errForeign)
	}
	return nil
}

// Close returns when all is written.
func (d *directory) Close() error {
	d.pending.Wait()
	close(d.writes)
	return d.dir.Close()
}

func (d *directory) fd() int { return int(d.dir.Fd()) }

func (d *directory) get(name string) ([]byte, error) {
	// O_NONBLOCK: what lies there may be a pipe.
	fd, err := unix.Openat(d.fd(), name+entrySuffix, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, unix.ELOOP):
		return nil, errForeign
	case err != nil:
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := own(fd, unix.S_IFREG); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Size > maxEntry || st.Size == 0 {
		return nil, errForeign
	}
	entry := make([]byte, st.Size)
	if _, err := io.ReadFull(f, entry); err != nil {
		return nil, err
	}
	// Without it the entry goes earlier than it need.
	_ = unix.Futimes(fd, []unix.Timeval{unix.NsecToTimeval(time.Now().UnixNano()), unix.NsecToTimeval(time.Now().UnixNano())})
	return entry, nil
}

// put has the entry written, by a goroutine of its own: whoever derived the value does
// not wait for the disk.
func (d *directory) put(name string, entry []byte) error {
	if int64(len(entry)) > min(maxEntry, d.limit/credit) {
		return errTooLarge
	}
	d.pending.Add(1)
	d.writes <- kept{name, entry}
	return nil
}

// write writes the entry beside its place and moves it there. It is not synced: an
// entry that a crash of the machine damages is told by its checksum.
func (d *directory) write(name string, entry []byte) (err error) {
	if err := d.makeRoom(int64(len(entry))); err != nil {
		return err
	}
	part := rand.Text() + partSuffix
	fd, err := unix.Openat(d.fd(), part, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(d.fd(), part, 0)
		}
	}()
	f := os.NewFile(uintptr(fd), part)
	_, err = f.Write(entry)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return unix.Renameat(d.fd(), part, d.fd(), name+entrySuffix)
}

// makeRoom removes the entries used longest ago until one of size fits.
func (d *directory) makeRoom(size int64) error {
	if d.room -= size; d.room >= 0 {
		return nil
	}
	files, err := d.list()
	if err != nil {
		return err
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.used, b.used) })
	total := int64(0)
	for _, f := range files {
		total += f.size
	}
	left := time.Now().Add(-abandoned).UnixNano()
	for _, f := range files {
		if total > d.limit-d.limit/credit || strings.HasSuffix(f.name, partSuffix) && f.used < left {
			if err := unix.Unlinkat(d.fd(), f.name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			total -= f.size
		}
	}
	d.room = d.limit/credit - size
	return nil
}

type file struct {
	name string
	size int64 // bytes
	used int64 // nanoseconds
}

// list returns the memo's own files. Others are left alone.
func (d *directory) list() (files []file, err error) {
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), d.dir.Name())
	defer dir.Close()
	names, err := dir.Readdirnames(maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, name := range names {
		var st unix.Stat_t
		if !strings.HasSuffix(name, entrySuffix) && !strings.HasSuffix(name, partSuffix) ||
			unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		files = append(files, file{name, st.Size, st.Mtim.Nano()})
	}
	return files, nil
}
