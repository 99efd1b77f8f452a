package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// A Table is one that all processes of a Ledger fill. A full table takes nothing more, after what
// ended processes have in it made room: what finds no room is counted as lost. Who may fill it is
// not decided here, but where events enter.
type Table uint8

// The tables.
const (
	Rows     Table = iota // allocations with a row
	Extra                 // allocations beyond those
	Mappings              // mappings of physical memory
	Sites                 // call sites
	NumTables
)

// Held are numbers of entries by Table.
type Held [NumTables]int

// Bounds returns how many entries each table takes.
func (l *Ledger) Bounds() Held {
	return Held{l.opt.MaxLive, l.opt.MaxUnattributed, l.opt.MaxMappings, l.opt.MaxSites}
}

// Held yields how many entries each process that lives has, in no order.
func (l *Ledger) Held(yield func(event.Process, Held) bool) {
	for id, p := range l.procs {
		if !p.exited && !yield(id, p.held) {
			return
		}
	}
}

// full returns whether a table takes nothing more.
func (l *Ledger) full(t Table) bool { return l.held[t] >= l.Bounds()[t] }

// count changes how many entries p has in a table.
func (p *process) count(t Table, n int) {
	p.held[t] += n
	p.l.held[t] += n
}

// rowRoom returns whether there is room for one more row. Rows of ended processes make room first.
func (p *process) rowRoom() bool {
	if p.l.full(Rows) {
		p.l.reclaim(p)
	}
	return !p.l.full(Rows)
}

// HeldByAll returns how many entries each table has.
func (l *Ledger) HeldByAll() Held { return l.held }
