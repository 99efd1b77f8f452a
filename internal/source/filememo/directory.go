package filememo

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"

	"golang.org/x/sys/unix"
)

// A directory is a store with one file for each entry. A file's modification time is the
// time of its last use.
type directory struct {
	dir     *os.File
	limit   int64
	writes  chan written
	pending sync.WaitGroup // of writes
	failed  func()         // called when a write fails

	room int64 // bytes that may be written before the directory is looked through
}

var errTooLarge = errors.New("the value is too large for the cache")

const (
	// maxWaiting bounds the entries that wait to be written.
	maxWaiting  = 1 << 10
	entrySuffix = ".memo"
	// Files that are being written have this suffix. One that was not written to for
	// this long was left by a crash.
	partSuffix = ".part"
	abandoned  = time.Minute
	// The directory is listed each time that 1/credit of the limit has been written.
	// Each further process that uses the directory may exceed the limit by as much.
	credit = 8
	// maxFiles bounds the files of one directory that are looked at.
	maxFiles = 1 << 16
)

// openDirectory opens a directory that is closed to other users, and makes it if need be.
// The user chooses the path. The directory itself is checked by its descriptor, and only
// the descriptor is used from then on.
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
		writes: make(chan written, maxWaiting),
	}
	if err := checkOwner(fd, unix.S_IFDIR); err != nil {
		d.dir.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	go func() {
		for w := range d.writes {
			if d.write(w.name, w.entry) != nil {
				d.failed()
			}
			d.pending.Done()
		}
	}()
	return d, nil
}

// checkOwner fails unless the open file is of the type, the effective user's, and nobody
// else's to read or write.
func checkOwner(fd int, kind uint32) error {
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
	if err := checkOwner(fd, unix.S_IFREG); err != nil {
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
	// If this fails, the entry is dropped earlier than necessary.
	_ = unix.Futimes(fd, []unix.Timeval{unix.NsecToTimeval(time.Now().UnixNano()), unix.NsecToTimeval(time.Now().UnixNano())})
	return entry, nil
}

// put queues the entry for a goroutine that writes it, so that the caller does not wait for
// the disk.
func (d *directory) put(name string, entry []byte) error {
	if int64(len(entry)) > min(maxEntry, d.limit/credit) {
		return errTooLarge
	}
	d.pending.Add(1)
	d.writes <- written{name, entry}
	return nil
}

// write writes the entry to a temporary file and renames it. It does not sync: the checksum
// shows if a crash of the machine damaged an entry.
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

// makeRoom removes the least recently used entries until one of size fits.
func (d *directory) makeRoom(size int64) error {
	if d.room -= size; d.room >= 0 {
		return nil
	}
	files, err := d.list()
	if err != nil {
		return err
	}
	sorting.Stable(files, func(a, b file) int { return cmp.Compare(a.used, b.used) })
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

// A written entry is on its way to the disk.
type written struct {
	name  string
	entry []byte
}

type file struct {
	name string
	size int64 // bytes
	used int64 // nanoseconds
}

// list returns the memo's own files, and no others.
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
