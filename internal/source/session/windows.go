package session

import (
	"errors"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// WindowOptions say when tensors are traced. With the zero value they always are.
type WindowOptions struct {
	Length time.Duration // of a window, at least
	Every  time.Duration // from the beginning of one to that of the next
}

const (
	// A window without a whole training step lasts up to windowPatience times as long, but no
	// longer than half of the time to the next one.
	windowPatience = 5
	// stepInterval is the time between two looks for a whole step.
	stepInterval = 20 * time.Millisecond
	// retryInterval is the time between two tries to open a window while no process maps PyTorch's
	// library, and from the first window without a whole step to the next one.
	retryInterval = time.Second
)

func (o *WindowOptions) wanted() bool { return o.Length > 0 }

// longest is how long a window lasts at most.
func (o *WindowOptions) longest() time.Duration {
	return max(o.Length, min(windowPatience*o.Length, o.Every/2))
}

// A windowOpener opens the windows in which tensors are traced. Where training steps are is not known
// before a window is open: it begins by time, and ends when it has lasted long enough and had a whole
// step of each process that trains.
type windowOpener struct {
	*sources
}

// announce says that there will be windows.
func (w windowOpener) announce() {
	if w.opts.Windows.wanted() {
		w.set(0, false)
	}
}

// run opens windows until end is closed. The first ones of a program may fall into its start, where
// nothing is to be seen: until one had a whole training step, the time to the next one doubles each
// time, up to the usual.
func (w windowOpener) run(end <-chan struct{}) {
	o := &w.opts.Windows
	if !o.wanted() {
		return
	}
	for soon := retryInterval; ; {
		next := time.NewTimer(o.Every)
		began := false
		err := w.tracer.OpenWindow(func() {
			began = true
			w.set(monotonic(), true)
		})
		if err == nil {
			w.last(end)
		}
		if began {
			w.set(monotonic(), false)
		}
		select {
		case <-end:
			return // the tracer removes the probes
		default:
		}
		switch {
		case errors.Is(err, probes.ErrNoTensors):
			next.Reset(min(o.Every, retryInterval))
		case err != nil:
			w.warn("a window of tensors was not opened: " + err.Error())
		case soon < o.Every && !locked(w.store, (*state.State).WindowHadStep):
			next.Reset(soon)
			soon *= 2
		}
		if err := w.tracer.CloseWindow(); err != nil {
			w.warn("the probes of a window did not come off cleanly: " + err.Error())
		}
		select {
		case <-end:
			next.Stop()
			return
		case <-next.C:
		}
	}
}

// last waits as long as a window lasts.
func (w windowOpener) last(end <-chan struct{}) {
	o := &w.opts.Windows
	longest := time.After(o.longest())
	for wait := o.Length; ; wait = stepInterval {
		select {
		case <-end:
			return
		case <-longest:
			return
		case <-time.After(wait):
		}
		if locked(w.store, (*state.State).WindowIsComplete) {
			return
		}
	}
}

// set records that a window begins or ends.
func (w windowOpener) set(at uint64, open bool) {
	o := &w.opts.Windows
	w.apply(&record.Tensors{Time: at, Window: record.Window{Length: uint64(o.Length), Every: uint64(o.Every), Open: open}})
}
