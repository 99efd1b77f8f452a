package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// A Listener hears of each change in a Ledger right after it. Embed NoListener in a type
// that does not need all of its methods.
type Listener interface {
	// Changed reports a call site: its memory in use changed, or how much of that lies in tensors
	// (see Ledger.SiteChanged). The end of a process is not reported: its last state stays.
	Changed(*Site)
	Extents
	// Peaked reports a new highest total of a process's memory of class device, and returns
	// whether that is its peak. If not, the peak is where MarkPeak is called.
	Peaked(event.Process) bool
	// Leaving reports a call site that is about to be removed: with its process, or
	// because its counters are added to the synthetic site of its kind.
	Leaving(*Site)
}

// Extents hears of address ranges [from, to) of memory of class device: when memory
// begins to lie there, and when it ends. Ranges of a
// process that is frozen, dropped or forgotten do not end.
type Extents interface {
	Began(proc event.Process, from, to uint64, at *Site)
	Ended(proc event.Process, from, to uint64)
}

// NoListener is a Listener that does nothing. A type that embeds an Extents beside it has
// the methods of that.
type NoListener struct{ noExtents }

// Changed does nothing.
func (NoListener) Changed(*Site) {}

// Peaked makes it the peak.
func (NoListener) Peaked(event.Process) bool { return true }

// Leaving does nothing.
func (NoListener) Leaving(*Site) {}

type noExtents struct{}

func (noExtents) Began(event.Process, uint64, uint64, *Site) {}
func (noExtents) Ended(event.Process, uint64, uint64)        {}

func (p *process) leaving(s *Site) {
	if hears := p.l.opt.Listener; hears != nil {
		hears.Leaving(s)
	}
}

// began and ended report the range of an allocation, if it is on a device.
func (p *process) began(space event.Space, from, to uint64, s *Site) {
	if hears := p.l.opt.Listener; hears != nil && isExtent(space, s) {
		hears.Began(p.id, from, to, s)
	}
}

func (p *process) ended(space event.Space, from, to uint64) {
	if hears := p.l.opt.Listener; hears != nil && space == event.SpacePointer {
		hears.Ended(p.id, from, to)
	}
}

// isExtent returns whether the Listener hears of the range of an allocation.
func isExtent(space event.Space, s *Site) bool {
	return space == event.SpacePointer && s.Kind.Class() == event.ClassDevice
}

// SiteChanged tells the Listener that the memory in use of a call site changed. The tensor layer
// calls it where it changed how much of that memory lies in tensors.
func (l *Ledger) SiteChanged(s *Site) {
	if l.opt.Listener != nil {
		l.opt.Listener.Changed(s)
	}
}
