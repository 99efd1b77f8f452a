package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
)

// A tapes writes empty recordings.
type tapes struct {
	paths []string
	err   error
}

func (x *tapes) Record(f *os.File, opts record.WriterOptions) error {
	defer f.Close()
	if x.err != nil {
		return x.err
	}
	if opts.MaxBytes < record.MinBytes {
		return errors.New("no bound")
	}
	x.paths = append(x.paths, f.Name())
	return nil
}

// The newest recordings of earlier runs stay, within a bound; what else is there stays,
// too; and two agents do not take one directory.
func TestRecorder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "recordings")
	at := time.Date(2026, 3, 14, 3, 5, 0, 0, time.UTC)
	var x tapes
	keep := []string{"notes.gmt", "gpumemtrace-20260101-000000.gmt.bak"}
	for run := range 6 {
		r, err := openRecorder(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := openRecorder(dir); err == nil {
			t.Fatal("two agents record there")
		}
		if run == 0 {
			for _, name := range keep {
				os.WriteFile(filepath.Join(dir, name), nil, 0o600)
			}
			os.Mkdir(filepath.Join(dir, "gpumemtrace-20260101-000000.gmt"), 0o700)
		}
		// One that begins in the same second has another name.
		for range 2 {
			if err := r.begin(&x, 16<<20, 2, at); err != nil {
				t.Fatal(err)
			}
			at0 := at.Add(time.Duration(len(x.paths)) * time.Second)
			os.Chtimes(filepath.Join(r.path, r.name), at0, at0)
		}
		at = at.Add(time.Hour)
		r.close()
	}
	var got []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type().IsRegular() && !slices.Contains(keep, e.Name()) {
			got = append(got, filepath.Join(dir, e.Name()))
		}
	}
	want := x.paths[len(x.paths)-3:]
	if slices.Sort(want); !slices.Equal(got, want) || len(entries) != len(want)+len(keep)+1 {
		t.Errorf("%q of %d files, want %q", got, len(entries), want)
	}
	r, err := openRecorder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	x.err = fs.ErrPermission
	if err := r.begin(&x, 16<<20, 0, at); !errors.Is(err, fs.ErrPermission) || r.name != "" {
		t.Errorf("%v, %q", err, r.name)
	}
	if again, _ := os.ReadDir(dir); len(again) != len(entries) {
		t.Error("old recordings went though none was begun")
	}
}

// Nothing is recorded where others could put recordings in place of ours, or remove them.
func TestRecorderOfOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if r, err := openRecorder(dir); err == nil || !strings.Contains(err.Error(), "others may write to "+dir) || !strings.Contains(err.Error(), "chmod go-w") {
		r.close()
		t.Errorf("%v", err)
	}
}

// When a recording begins is known from its first records, of one that begins amid a trace
// too. From then on replay has all moments, and none before.
func TestBeginOf(t *testing.T) {
	boot := time.Date(2026, 3, 14, 3, 0, 0, 0, time.UTC)
	trace := &record.Trace{Version: "test", Boot: boot, Start: boot.Add(time.Minute)}
	for since, want := range map[time.Duration]time.Time{0: trace.Start, time.Hour: boot.Add(time.Hour)} {
		path := filepath.Join(t.TempDir(), "recording.gmt")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w, err := record.Create(f, record.WriterOptions{MaxBytes: record.MinBytes, Since: uint64(since), Keyframe: func(yield func(record.Record)) { yield(trace) }})
		if err != nil {
			t.Fatal(err)
		}
		if since == 0 {
			w.Append(trace)
		}
		for i := range 10 {
			w.Append(&record.Moment{Time: uint64(max(since, time.Minute) + time.Duration(i)*time.Second)})
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := beginOf(path)
		if err != nil || !got.Equal(want) {
			t.Fatalf("it begins at %v, %v, want %v", got, err, want)
		}
		at := func(after time.Duration) error {
			_, err := replay.Play(path, replay.Options{At: want.Add(after).Sub(trace.Start)})
			return err
		}
		if at(0) != nil || at(5*time.Second) != nil || !errors.Is(at(-time.Second), replay.ErrNoMoment) {
			t.Errorf("%v: %v, %v, and %v before", want, at(0), at(5*time.Second), at(-time.Second))
		}
	}
	if _, err := beginOf(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
