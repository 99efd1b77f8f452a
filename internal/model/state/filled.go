package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/windows"
)

// A Layer is one of allocations.
type Layer int

// The layers.
const (
	Driver Layer = iota
	Tensors
	Physical
	NumLayers
)

// Filled counts the entries of each table that processes fill.
type Filled [tablesOfLayer*int(NumLayers) + 1]int

// The tables of a layer. Without room in the first three, an allocation has no call stack.
// Without room in the others, it is in no total.
const (
	rows = iota
	sites
	windowSites // of the tensor layer alone
	extra
	mappings
	objects // of the physical layer alone
	tablesOfLayer
	detailTables = extra
)

// Detail returns the tables of a layer that call stacks need.
func (f *Filled) Detail(l Layer) []int { return f.of(l)[:detailTables] }

// Sizes returns the tables of a layer that totals need.
func (f *Filled) Sizes(l Layer) []int { return f.of(l)[detailTables:] }

// Sites returns the table of a layer's call sites.
func (f *Filled) Sites(l Layer) *int { return &f.of(l)[sites] }

// Frames returns the table of frames.
func (f *Filled) Frames() *int { return &f[len(f)-1] }

func (f *Filled) of(l Layer) []int { return f[tablesOfLayer*int(l):][:tablesOfLayer] }

func (f *Filled) add(l Layer, h ledger.Held) {
	of := f.of(l)
	of[rows] += h[ledger.Rows]
	of[sites] += h[ledger.Sites]
	of[extra] += h[ledger.Extra]
	of[mappings] += h[ledger.Mappings]
}

// fill returns what is in the tables, of which each ledger tells its own.
func (s *State) fill(held func(*ledger.Ledger) ledger.Held, inWindows, ofDriver, frames int) (f Filled) {
	for i, l := range s.layers() {
		f.add(Layer(i), held(l))
	}
	f.of(Tensors)[windowSites], f.of(Physical)[objects], *f.Frames() = inWindows, ofDriver, frames
	return f
}

// Bounds returns how many entries each table takes.
func (s *State) Bounds() Filled {
	return s.fill((*ledger.Ledger).Bounds, windows.MaxSites, physical.MaxObjects, stacks.MaxFrames)
}

// Filled returns how many entries each table has.
func (s *State) Filled() Filled {
	return s.fill((*ledger.Ledger).HeldByAll, s.windows.SiteCount(), s.physical.ObjectCount(), s.stacks.FrameCount())
}

// FilledBy returns how many entries each tenant has. It leaves out those of ended processes,
// which make room for others.
func (s *State) FilledBy() map[uint16]*Filled {
	out := map[uint16]*Filled{}
	of := func(id event.Process) *Filled { return keyed.At(out, s.processes.Tenant(id)) }
	for i, l := range s.layers() {
		for id, h := range l.Held {
			of(id).add(Layer(i), h)
		}
	}
	for id, n := range s.stacks.Held {
		if s.processes.IsAlive(id) {
			*of(id).Frames() += n
		}
	}
	for id, n := range s.windows.Sites {
		of(id).of(Tensors)[windowSites] += n
	}
	for id, n := range s.physical.Objects {
		of(id).of(Physical)[objects] += n
	}
	return out
}

// FoldSites makes room among a layer's call sites: of each process of a tenant it folds half of
// those that hold nothing. It returns how many those were.
func (s *State) FoldSites(l Layer, tenant uint16) (folded int) {
	for _, id := range s.processes.current {
		if s.processes.Tenant(id) == tenant {
			folded += s.layers()[l].Fold(id)
		}
	}
	return folded
}

// addStack adds a stack. Those of the processes that ended first make room for it.
func (s *State) addStack(r *record.Stack) {
	if !s.stacks.HasRoom(r) {
		s.stacks.DropOf(s.processes.ended)
	}
	s.stacks.Add(r)
	s.steps.AddStack(r.ID)
}

// Refuse asks again for a stack that is not kept.
func (s *State) Refuse(st *record.Stack) { s.stacks.Refuse(st) }
