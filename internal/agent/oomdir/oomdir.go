// Package oomdir puts each failure for want of memory into a directory: a page of text,
// and the profile of everything live at that moment.
package oomdir

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Dir is such a directory. It is safe for concurrent use.
type Dir struct {
	path string
	dir  *atomicfile.Dir

	mu   sync.Mutex
	n    int // reports written
	keep int

	explainer *explainer // nil for none
}

// Open makes the directory if it is not there, with a mode: what is wrong with it is
// found before anything is written. A directory that is to be this user's own must belong
// to it, and nobody else may write to it.
func Open(path string, mode fs.FileMode, own bool) (*Dir, error) {
	dir, err := atomicfile.MakeDir(path, mode)
	if err != nil {
		return nil, fmt.Errorf("make a place for out-of-memory reports: %w", err)
	}
	if own {
		err = atomicfile.Own(dir.File())
	}
	if err == nil {
		err = dir.Check("probe", true)
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("write out-of-memory reports: %w", err)
	}
	return &Dir{path: path, dir: dir}, nil
}

// Keep has reports removed but for n, those of earlier runs too; 0 keeps all. Those of the
// process that has most go first, its oldest.
func (d *Dir) Keep(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep = n
}

// Write writes a report and returns the path of its page.
func (d *Dir) Write(o *snapshot.OutOfMemory) (page string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n++
	recording := d.explainer.recordingOf(o)
	base := fmt.Sprintf("oom-%s-%d-%03d", o.Time.UTC().Format("20060102-150405"), o.PID, d.n)
	for name, content := range map[string]func(io.Writer) error{
		base + ".pb.gz": func(f io.Writer) error { return pprof.Write(f, o.Snapshot) },
		base + ".txt":   func(f io.Writer) error { return export.OutOfMemory(f, o) },
	} {
		if err := d.dir.Write(name, true, content); err != nil {
			return "", errors.Join(fmt.Errorf("write %s: %w", filepath.Join(d.path, name), err), d.prune())
		}
	}
	page = filepath.Join(d.path, base+".txt")
	if recording != "" {
		d.explainer.add(question{o, page, recording})
	}
	return page, d.prune()
}

// rewrite replaces a page that Write wrote, if it is still there.
func (d *Dir) rewrite(page string, o *snapshot.OutOfMemory) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := filepath.Base(page)
	_, err := d.dir.Lstat(name)
	if err == nil {
		err = d.dir.Write(name, true, func(f io.Writer) error { return export.OutOfMemory(f, o) })
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("write %s again: %w", page, err)
}

// names are those of what Write writes: its time, PID and number.
var names = regexp.MustCompile(`^oom-(\d{8}-\d{6})-(\d+)-(\d{3,})\.(?:txt|pb\.gz)$`)

// A report is in one file or two.
type report struct {
	pid, time string
	number    string
	files     []string
}

// prune removes what is too much.
func (d *Dir) prune() error {
	if d.keep == 0 {
		return nil
	}
	reports, err := d.reports()
	if err != nil {
		return fmt.Errorf("look for old out-of-memory reports: %w", err)
	}
	of := map[string][]*report{} // by PID, oldest first
	for _, r := range reports {
		of[r.pid] = append(of[r.pid], r)
	}
	for left := len(reports); left > d.keep; left-- {
		most := ""
		for pid, all := range of {
			if most == "" || len(all) > len(of[most]) || len(all) == len(of[most]) && older(all[0], of[most][0]) < 0 {
				most = pid
			}
		}
		for _, name := range of[most][0].files {
			if err := d.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove an old out-of-memory report: %w", err)
			}
		}
		if of[most] = of[most][1:]; len(of[most]) == 0 {
			delete(of, most)
		}
	}
	return nil
}

func older(a, b *report) int {
	return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(len(a.number), len(b.number)), cmp.Compare(a.number, b.number))
}

// reports returns those that are there, oldest first.
func (d *Dir) reports() ([]*report, error) {
	entries, err := fs.ReadDir(d.dir.FS(), ".")
	if err != nil {
		return nil, err
	}
	by := map[string]*report{}
	var all []*report
	for _, e := range entries {
		m := names.FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() {
			continue
		}
		key := m[1] + "-" + m[2] + "-" + m[3]
		r := by[key]
		if r == nil {
			r = &report{time: m[1], pid: m[2], number: m[3]}
			by[key] = r
			all = append(all, r)
		}
		r.files = append(r.files, e.Name())
	}
	sorting.Stable(all, older)
	return all, nil
}
