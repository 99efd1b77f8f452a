package probes

import (
	"errors"
	"sync"
	"time"
)

// With Options.Windows the probes on PyTorch's tensors are on in windows only: each trap of one costs
// the program more than all that comes after it. Their places are found with those of the library's
// other probes (attachment.later). All of them share a gate, so that a window begins and ends for all
// at once, however long the probes take to go on and off.

// A window has the probes on tensors that are on.
type window struct {
	gate *gate

	mu     sync.Mutex
	closed bool
	on     []*attachment
	gone   sync.WaitGroup // who puts probes on, from the window's making on
}

// makeWindow returns a window whose maker must call putOn, or gone.Done.
func makeWindow(g *gate) *window {
	w := &window{gate: g}
	w.gone.Add(1)
	return w
}

// ErrNoTensors is the error of OpenWindow while no traced process maps PyTorch's library.
var ErrNoTensors = errors.New("no traced process has a function that reports tensors")

// OpenWindow puts the probes on tensors on, calls begin, and opens their gate. It fails if a window
// is open, or if probes of the last one are still on.
func (t *Tracer) OpenWindow(begin func()) error { return t.libs.openWindow(begin) }

// CloseWindow ends the events of the open window at once, and then removes its probes.
func (t *Tracer) CloseWindow() error { return t.libs.closeWindow() }

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
	if l.shutDown {
		return errStopped
	}
	_, err = w.gate.open()
	return err
}

// putOn begins to put the probes on tensors on libraries. It closes done at its end.
func (w *window) putOn(held map[attachKey]*attachment, progs programs) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer w.gone.Done()
		defer close(done)
		var all []func()
		for key, a := range held {
			all = append(all, func() { w.attach(a, progs, key.pid) })
		}
		inParallel(len(all), sideBySide, func(i int) { all[i]() })
	}()
	return done
}

// newWindow makes the window that is open from now on, and returns the libraries that it is of.
func (l *libraries) newWindow() (*window, map[attachKey]*attachment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.slots.stopped, l.shutDown:
		return nil, nil, errStopped
	case l.window != nil:
		return nil, nil, errors.New("the last window's probes are still on")
	}
	held := map[attachKey]*attachment{}
	for key, a := range l.slots.table {
		if len(a.later) > 0 {
			held[key] = a
		}
	}
	if len(held) == 0 {
		return nil, nil, ErrNoTensors
	}
	if l.windowGate == nil {
		if l.windowGate = l.gates.get(); l.windowGate == nil {
			return nil, nil, errNotProbed
		}
	}
	l.window = makeWindow(l.windowGate)
	return l.window, held, nil
}

// attach puts the probes on tensors on a library. It has no effect on one that lost its slot, nor
// after the window's end.
func (w *window) attach(held *attachment, progs programs, pid int) {
	held.file.RLock()
	defer held.file.RUnlock()
	w.mu.Lock()
	late := held.closed || w.closed
	w.mu.Unlock()
	if late {
		return
	}
	a := &attachment{library: held.library, gate: w.gate}
	err := a.attach(held.library.file.Link(), progs, held.later, pid)
	w.mu.Lock()
	closed := w.closed
	if err == nil && !closed {
		w.on = append(w.on, a)
	}
	w.mu.Unlock()
	if err != nil || closed {
		_ = a.unlink()
	}
}

func (l *libraries) closeWindow() error {
	l.mu.Lock()
	w := l.window
	l.mu.Unlock()
	if w == nil {
		return nil
	}
	err := w.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.window == w {
		l.window = nil
	}
	return err
}

// close shuts the gate and removes the probes. It waits for who puts them on.
func (w *window) close() error {
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
