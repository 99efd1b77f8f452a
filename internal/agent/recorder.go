package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A tape is what records: *session.Session.
type tape interface {
	Record(file *os.File, opts record.WriterOptions) error
}

// A recorder keeps recordings in a directory of its own: the one being written, and the
// newest of those before.
type recorder struct {
	path string          // of the directory
	dir  *atomicfile.Dir // locked: of all agents one records there
	name string          // of the file being written, "" for none
	max  int64           // bytes of it
}

// recordings are what a recorder writes; whatever else is in its directory it leaves.
var recordings = regexp.MustCompile(`^gpumemtrace-\d{8}-\d{6}(-\d+)?\.gmt$`)

// openRecorder takes a directory for recordings, and makes it if it is not there. What is
// recorded is of all users, so that nobody else may read it, or put something in its place.
func openRecorder(dir string) (*recorder, error) {
	d, err := atomicfile.MakeDir(dir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("make a place for recordings: %w", err)
	}
	if err := atomicfile.Own(d.File()); err != nil {
		d.Close()
		return nil, fmt.Errorf("record: %w", err)
	}
	if err := syscall.Flock(int(d.File().Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		d.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errors.New("another agent records there")
		}
		return nil, fmt.Errorf("record in %s: %w", dir, err)
	}
	return &recorder{path: dir, dir: d}, nil
}

// begin begins a recording of max bytes at most, at a time, in place of the one before.
func (r *recorder) begin(t tape, max int64, old int, at time.Time) error {
	base := "gpumemtrace-" + at.UTC().Format("20060102-150405")
	name := base + ".gmt"
	file, err := r.dir.Create(name, false)
	for n := 2; errors.Is(err, fs.ErrExist) && n <= 100; n++ {
		name = fmt.Sprintf("%s-%d.gmt", base, n)
		file, err = r.dir.Create(name, false)
	}
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := t.Record(file, record.WriterOptions{MaxBytes: max}); err != nil {
		return errors.Join(err, r.dir.Remove(name))
	}
	r.name, r.max = name, max
	return r.prune(old)
}

// prune removes recordings but the newest so many, and the one being written.
func (r *recorder) prune(old int) error {
	entries, err := fs.ReadDir(r.dir.FS(), ".")
	if err != nil {
		return fmt.Errorf("look for old recordings: %w", err)
	}
	var all []fs.FileInfo
	for _, e := range entries {
		if e.Name() == r.name || !recordings.MatchString(e.Name()) {
			continue
		}
		if info, err := r.dir.Lstat(e.Name()); err == nil && info.Mode().IsRegular() {
			all = append(all, info)
		}
	}
	sorting.Stable(all, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for i := old; i < len(all); i++ {
		if err := r.dir.Remove(all[i].Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old recording: %w", err)
		}
	}
	return nil
}

// beginOf returns when a recording begins. It reads the first records, whatever the size of
// the file.
func beginOf(path string) (time.Time, error) {
	r, err := record.Open(path)
	if err != nil {
		return time.Time{}, err
	}
	defer r.Close()
	cut := uint64(0)
	for range maxBefore {
		next, err := r.Next()
		if err != nil {
			return time.Time{}, fmt.Errorf("read %s: %w", path, err)
		}
		switch x := next.(type) {
		case *record.Cut:
			cut = x.Time
		case *record.Trace:
			if cut == 0 {
				return x.Start, nil
			}
			return x.Boot.Add(time.Duration(cut)), nil
		}
	}
	return time.Time{}, fmt.Errorf("read %s: it does not say what was traced", path)
}

// maxBefore bounds the records before the one that says what is traced.
const maxBefore = 64

func (r *recorder) close() {
	if r != nil {
		r.dir.Close()
	}
}
