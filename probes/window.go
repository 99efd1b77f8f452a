package probes

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// With Options.Windows the probes on PyTorch's tensors are on in windows only: each trap of one costs
// the program more than all that comes after it. Their places are found with those of the library's
// other probes (attachment.later). All of them share a gate, so that a window begins and ends for all
// at once, however long the probes take to go on and off.

// A window has the probes that are on for a while, on files that have others.
type window struct {
	gate  *gate        // nil: always open
	close func() error // see remove; once

	mu     sync.Mutex
	closed bool
	on     []*attachment
	gone   sync.WaitGroup // who puts probes on, from the window's making on
}

// makeWindow returns a window whose maker must call gone.Done.
func makeWindow(g *gate) *window {
	w := &window{gate: g}
	w.close = sync.OnceValue(w.remove)
	w.gone.Add(1)
	return w
}

// ErrNoTensors is the error of OpenWindow while no traced process maps PyTorch's library.
var ErrNoTensors = errors.New("no traced process has a function that reports tensors")

// OpenWindow puts the probes on tensors on, calls begin, and opens their gate. It fails if a window
// is open, or if probes of the last one are still on.
func (t *Tracer) OpenWindow(begin func()) error { return t.libs.openWindow(begin) }

// CloseWindow ends the events of the open window at once, and then removes its probes.
func (t *Tracer) CloseWindow() error {
	t.libs.mu.Lock()
	w := t.libs.gatedWindow()
	t.libs.mu.Unlock()
	if w == nil {
		return nil
	}
	return t.libs.closeWindow(w)
}

// laterPoints takes the points out of s that have probes in windows only.
func (s *sites) laterPoints() (later []point) {
	var now []point
	for _, p := range s.points {
		if Entries[p.entry].class == classTensor {
			later = append(later, p)
		} else {
			now = append(now, p)
		}
	}
	s.points = now
	return later
}

func (l *libraries) openWindow(begin func()) error {
	w, held, err := l.newWindow()
	if err != nil {
		return err
	}
	if err := w.gate.shut(); err != nil {
		w.gone.Done()
		return err
	}
	select {
	case <-w.putOn(held, l.progs):
	case <-time.After(attachPatience):
	}
	begin()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return errStopped
	}
	_, err = w.gate.open()
	return err
}

// putOn begins to put the probes on tensors on files. It closes done at its end.
func (w *window) putOn(held []*probedFile, progs programs) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer w.gone.Done()
		defer close(done)
		inParallel(len(held), sideBySide, func(i int) {
			f := held[i]
			_ = w.attach(f.attachment, func() ([]point, error) { return f.later, nil }, progs, f.key.pid)
		})
	}()
	return done
}

// gatedWindow returns the window that OpenWindow made, nil if there is none.
func (l *libraries) gatedWindow() *window {
	for w := range l.windows {
		if w.gate != nil {
			return w
		}
	}
	return nil
}

// newWindow makes the window that is open from now on, and returns the files that it is of.
func (l *libraries) newWindow() (*window, []*probedFile, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped:
		return nil, nil, errStopped
	case l.gatedWindow() != nil:
		return nil, nil, errors.New("the last window's probes are still on")
	}
	var held []*probedFile
	for _, f := range l.table {
		if f.attachment != nil && len(f.later) > 0 {
			held = append(held, f)
		}
	}
	if len(held) == 0 {
		return nil, nil, ErrNoTensors
	}
	g := l.gates.get()
	if g == nil {
		return nil, nil, errNotProbed
	}
	w := makeWindow(g)
	l.windows[w] = true
	return w, held, nil
}

// attach puts more probes on a file. It has no effect on one that lost its place, nor after the
// window's end.
func (w *window) attach(held *attachment, find func() ([]point, error), progs programs, pid int) error {
	held.file.RLock()
	defer held.file.RUnlock()
	w.mu.Lock()
	late := held.closed || w.closed
	w.mu.Unlock()
	if late {
		return nil
	}
	points, err := find()
	if err != nil {
		return err
	}
	a := &attachment{library: held.library, gate: w.gate}
	err = a.attach(held.library.file.Link(), progs, points, pid)
	w.mu.Lock()
	closed := w.closed
	if err == nil && !closed {
		w.on = append(w.on, a)
	}
	w.mu.Unlock()
	if err != nil || closed {
		err = errors.Join(err, a.unlink())
	}
	return err
}

func (l *libraries) closeWindow(w *window) error {
	err := w.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.windows[w] && err == nil { // else a probe may still use the gate
		w.gate.release()
	}
	delete(l.windows, w)
	return err
}

// remove shuts the gate and removes the probes. It waits for who puts them on.
func (w *window) remove() error {
	errs := []error{w.gate.shut()}
	w.mu.Lock()
	all := w.on
	w.on, w.closed = nil, true
	w.mu.Unlock()
	each := make([]error, len(all))
	inParallel(len(all), maxDetaching, func(i int) { each[i] = all[i].unlink() })
	w.gone.Wait()
	return errors.Join(append(errs, each...)...)
}

// The threads of a program that was attached to late have current contexts already. The calls of
// cuCtxGetDevice show their devices, but programs may make thousands a second: with probes on it
// for good, a PyTorch training step with 9,000 such calls became two thirds slower. So these rows
// have probes for a moment only.
const glimpseTime = 250 * time.Millisecond

// lasting reports whether a row has probes for the whole trace.
func lasting(r *Row) bool { return r.class != classCtxDevice }

// glimpse puts probes for the other rows on a probed library, in one process, and removes them
// soon after.
func (l *libraries) glimpse(lib Library, pid int) error {
	w := makeWindow(nil)
	defer w.gone.Done()
	l.mu.Lock()
	f := l.find(attachKey{lib.id, lib.Level, pid})
	if f == nil || f.attachment == nil || l.stopped {
		l.mu.Unlock()
		return nil
	}
	l.windows[w] = true
	l.mu.Unlock()
	if !pidFilterWorks() {
		pid = 0
	}
	err := w.attach(f.attachment, func() ([]point, error) {
		s, err := f.library.sites(func(r *Row) bool { return !lasting(r) })
		return s.points, err
	}, l.progs, pid)
	time.AfterFunc(glimpseTime, func() {
		if err := l.closeWindow(w); err != nil {
			l.warnings.add(fmt.Sprintf("%s: probes for a moment stay on: %v", f.library.Path, err))
		}
	})
	if errors.Is(err, ErrNoSymbols) {
		err = nil
	}
	return err
}
