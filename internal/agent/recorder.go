package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
)

// A tape is what records: *session.Session.
type tape interface {
	Record(path string, opts record.WriterOptions) error
}

// A recorder keeps recordings in a directory of its own: the one being written, and the
// newest of those before.
type recorder struct {
	dir  string
	lock *os.File // the directory: of all agents one records there
	path string   // being written, "" for none
	max  int64    // bytes of it
}

// recordings are what a recorder writes; whatever else is in its directory it leaves.
var recordings = regexp.MustCompile(`^gpumemtrace-\d{8}-\d{6}(-\d+)?\.gmt$`)

// openRecorder takes a directory for recordings, and makes it if it is not there. What is
// recorded is of all users, so that nobody else may read it, or put something in its place.
func openRecorder(dir string) (*recorder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a place for recordings: %w", err)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the place for recordings: %w", err)
	}
	if err := atomicfile.Own(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("record: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another agent records there")
		}
		return nil, fmt.Errorf("record in %s: %w", dir, err)
	}
	return &recorder{dir: dir, lock: f}, nil
}

// begin begins a recording of max bytes at most, at a time, in place of the one before.
func (r *recorder) begin(t tape, max int64, old int, at time.Time) error {
	base := filepath.Join(r.dir, "gpumemtrace-"+at.UTC().Format("20060102-150405"))
	path := base + ".gmt"
	for n := 2; ; n++ {
		err := t.Record(path, record.WriterOptions{MaxBytes: max})
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) || n > 100 {
			return err
		}
		path = fmt.Sprintf("%s-%d.gmt", base, n)
	}
	r.path, r.max = path, max
	return r.prune(old)
}

// prune removes recordings but the newest so many, and the one being written.
func (r *recorder) prune(old int) error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return fmt.Errorf("look for old recordings: %w", err)
	}
	type file struct {
		path    string
		changed time.Time
	}
	var all []file
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name())
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && recordings.MatchString(e.Name()) && path != r.path {
			all = append(all, file{path, info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b file) int { return b.changed.Compare(a.changed) })
	for i := old; i < len(all); i++ {
		if err := os.Remove(all[i].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old recording: %w", err)
		}
	}
	return nil
}

func (r *recorder) close() {
	if r != nil {
		r.lock.Close()
	}
}
