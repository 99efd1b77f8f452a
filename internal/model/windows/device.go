package windows

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A device is the caching allocator of a process on a device.
type device struct {
	snapshot.Windowed // its Time is of the windows that have ended; for the rest see Report
	process           *process
	sites             map[uint64]*site // by stack
	live              map[uint64]tensor

	// Of the open window:
	open     bool
	fresh    bool // no event has come
	held     int64
	reserved int64
	steps    int64 // whole ones

	stepped bool    // a training step has begun in any window
	changed []*site // in which the step under way made tensors

	// Of the step under way: what the tensors hold, as far as they were counted, and the most of
	// it. Before the first step these are of the window.
	inuse   int64
	highest moment
	epoch   uint64 // counts the moments that were the highest
}

// A moment is what an allocator has in tensors, and holds.
type moment struct{ bytes, reserved int64 }

// A tensor was made in the open window.
type tensor struct {
	time, size, stack uint64
}

// A site has the tensors that a stack made in windows.
type site struct {
	snapshot.Values // without what is in use
	snapshot.Lives
	step    tally // of the step under way
	inuse   int64
	highest int64  // what inuse was at the device's highest moment,
	epoch   uint64 // if this is the device's: else it is inuse
	idle    int64  // windows in a row in which it made nothing
}

// A tally counts tensors.
type tally struct{ objects, bytes int64 }

// add counts tensors that begin, or with negative bytes end.
func (d *device) add(s *site, bytes int64) {
	if s.epoch != d.epoch {
		s.highest, s.epoch = s.inuse, d.epoch
	}
	s.inuse += bytes
	if d.inuse += bytes; d.inuse > d.highest.bytes {
		d.mark()
	}
}

// mark makes this the highest moment.
func (d *device) mark() {
	d.highest = moment{d.inuse, d.reserved}
	d.epoch++
}

// step counts a tensor that the step under way makes.
func (d *device) step(s *site, bytes int64) {
	if s.step == (tally{}) {
		d.changed = append(d.changed, s)
	}
	s.step.objects++
	s.step.bytes += bytes
}

// beginStep begins a training step. whole says that the one before was one.
func (d *device) beginStep(whole bool) {
	if whole {
		d.steps++
		d.Steps++
		// Of equal peaks it is that of which less is from before: what the first step of a window
		// begins with has no stack, a later one has its own gradients.
		before := d.sites[Before]
		if !d.WholeStep || d.highest.bytes > d.Peak ||
			d.highest.bytes == d.Peak && before != nil && d.atHighest(before) < before.PeakBytes {
			d.keep(true)
		}
	} else {
		d.keepRough()
	}
	for _, s := range d.changed {
		if whole {
			s.StepObjects += s.step.objects
			s.StepBytes += s.step.bytes
		}
		s.step = tally{}
	}
	d.changed = d.changed[:0]
	d.stepped = true
	d.mark()
}

// keep makes the highest moment the peak.
func (d *device) keep(whole bool) {
	d.Peak, d.Reserved, d.WholeStep = d.highest.bytes, d.highest.reserved, whole
	for _, s := range d.sites {
		s.PeakBytes = d.atHighest(s)
	}
}

// keepRough makes the highest moment the peak if it is higher and no step was whole.
func (d *device) keepRough() {
	if !d.WholeStep && d.highest.bytes > d.Peak {
		d.keep(false)
	}
}

// atHighest returns what a site had at the highest moment.
func (d *device) atHighest(s *site) int64 {
	if s.epoch != d.epoch {
		return s.inuse
	}
	return s.highest
}

// end ends a window, of which it saw so much.
func (d *device) end(took uint64) {
	d.keepRough()
	for _, x := range d.live {
		if s := d.sites[x.stack]; s != nil {
			s.Outlived++
			s.OutlivedBytes += int64(x.size)
		}
	}
	clear(d.live)
	for _, s := range d.sites {
		s.idle++
		s.inuse, s.highest, s.epoch, s.step = 0, 0, 0, tally{}
	}
	d.Time += time.Duration(took)
	d.open, d.steps, d.held, d.inuse, d.highest, d.epoch, d.changed = false, 0, 0, 0, moment{}, 0, nil
}

// shrink drops the sites that made nothing in the last windows and are not in the peak.
func (d *device) shrink() {
	for stack, s := range d.sites {
		if s.idle > 2 && s.PeakBytes == 0 {
			delete(d.sites, stack)
		}
	}
}
