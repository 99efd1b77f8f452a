package filememo

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A directory is a store with one file for each entry. A file's modification time is the
// time of its last use.
type directory struct {
	*atomicfile.Dir
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
func openDirectory(path string, limit int64, failed func()) (*directory, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := atomicfile.OpenDir(path)
	if err != nil {
		return nil, err
	}
	info, err := dir.File().Stat()
	if err == nil {
		err = checkOwner(info)
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d := &directory{Dir: dir, limit: limit, failed: failed, writes: make(chan written, maxWaiting)}
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

// checkOwner fails unless a file is the effective user's, and nobody else's to read or write.
func checkOwner(f fs.FileInfo) error {
	switch st := f.Sys().(*syscall.Stat_t); {
	case st.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("it belongs to user %d: %w", st.Uid, errForeign)
	case f.Mode()&0o077 != 0:
		return fmt.Errorf("others may use it (mode %#o): %w", f.Mode().Perm(), errForeign)
	}
	return nil
}

// Close returns when all is written.
func (d *directory) Close() error {
	d.pending.Wait()
	close(d.writes)
	return d.Dir.Close()
}

// get reads what it has looked at, since nobody else can write to the directory.
func (d *directory) get(name string) ([]byte, error) {
	name += entrySuffix
	switch info, err := d.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxEntry || info.Size() == 0:
		return nil, errForeign
	default:
		if err := checkOwner(info); err != nil {
			return nil, err
		}
	}
	// If this fails, the entry is dropped earlier than necessary.
	_ = d.Chtimes(name, time.Time{}, time.Now())
	return d.ReadFile(name)
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
func (d *directory) write(name string, entry []byte) error {
	if err := d.makeRoom(int64(len(entry))); err != nil {
		return err
	}
	part := rand.Text() + partSuffix
	f, err := d.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(entry)
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.Rename(part, name+entrySuffix)
	}
	if err != nil {
		_ = d.Remove(part)
	}
	return err
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
	sorting.Stable(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	total := int64(0)
	for _, f := range files {
		total += f.Size()
	}
	left := time.Now().Add(-abandoned)
	for _, f := range files {
		if total > d.limit-d.limit/credit || strings.HasSuffix(f.Name(), partSuffix) && f.ModTime().Before(left) {
			if err := d.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			total -= f.Size()
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

// list returns the memo's own files, and no others.
func (d *directory) list() (files []fs.FileInfo, err error) {
	dir, err := d.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, entrySuffix) && !strings.HasSuffix(name, partSuffix) {
			continue
		}
		if f, err := d.Lstat(name); err == nil && !f.IsDir() {
			files = append(files, f)
		}
	}
	return files, nil
}
