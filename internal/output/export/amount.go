package export

import (
	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
)

// An amount is a sum of samples.
type amount struct {
	snapshot.Values
	// Freed is the part of the allocated that was freed. Memory that a sample holds without
	// having allocated it, such as a remainder, is in neither.
	FreedObjects, FreedBytes int64
}

func (a *amount) add(s *snapshot.Sample) {
	a.Add(&s.Values)
	if s.AllocObjects != 0 || s.AllocBytes != 0 {
		a.FreedObjects += s.AllocObjects - s.InuseObjects
		a.FreedBytes += s.AllocBytes - s.InuseBytes
	}
}

// isHeld reports whether anything is held, or was at the peak.
func (a *amount) isHeld() bool {
	return a.InuseBytes != 0 || a.InuseObjects != 0 || a.PeakBytes != 0
}

// moved reports whether any of it was allocated.
func (a *amount) moved() bool { return a.AllocObjects != 0 || a.AllocBytes != 0 }

// A figure is a number of an amount, as rows of CSV have it.
type figure struct {
	key string
	of  func(*amount) int64
}

// figures are all numbers of an amount.
func figures() (out []figure) {
	for _, v := range succeeded() {
		out = append(out, figure{v.Key, func(a *amount) int64 { return *v.Of(&a.Values) }})
	}
	return append(out,
		figure{"freed_bytes", func(a *amount) int64 { return a.FreedBytes }},
		figure{"freed_objects", func(a *amount) int64 { return a.FreedObjects }},
		figure{"net_bytes", func(a *amount) int64 { return a.AllocBytes - a.FreedBytes }},
		figure{"net_objects", func(a *amount) int64 { return a.AllocObjects - a.FreedObjects }},
	)
}

// A face is the figures that a page shows: of memory that is held, or of memory that was
// allocated and freed.
type face struct {
	title string // of the column that rows are sorted by
	of    func(*amount) int64
	shown func(*amount) bool
	says  func(*amount) string // in headings
	rest  []table.Column       // after that
	cells func(*group) []any
}

var (
	holdings = face{
		title: "IN USE", of: func(a *amount) int64 { return a.InuseBytes }, shown: (*amount).isHeld,
		says:  func(a *amount) string { return bytefmt.Format(a.InuseBytes) },
		rest:  []table.Column{table.SomeCount("OBJECTS"), table.TextRight("EACH"), table.Bytes("AT PEAK")},
		cells: func(g *group) []any { return []any{g.InuseObjects, g.each(), g.PeakBytes} },
	}
	// sized is for live allocations, and for a moment of a recording.
	sized = face{
		title: "IN USE", of: holdings.of, shown: holdings.shown, says: holdings.says,
		rest:  holdings.rest[:2],
		cells: func(g *group) []any { return holdings.cells(g)[:2] },
	}
	// peaks is for processes that have ended.
	peaks = face{
		title: "AT PEAK", of: func(a *amount) int64 { return a.PeakBytes }, shown: holdings.shown,
		says:  func(a *amount) string { return bytefmt.Format(a.PeakBytes) },
		rest:  []table.Column{table.Bytes("AT END")},
		cells: func(g *group) []any { return []any{g.InuseBytes} },
	}
	turnover = face{
		title: "ALLOCATED", of: func(a *amount) int64 { return a.AllocBytes }, shown: (*amount).moved,
		says: func(a *amount) string {
			return bytefmt.Format(a.AllocBytes) + " allocated, " + bytefmt.Format(a.FreedBytes) + " freed"
		},
		rest: []table.Column{table.Count("CALLS"), table.Bytes("FREED"), table.Count("FREES"), table.Bytes("NET")},
		cells: func(g *group) []any {
			return []any{g.AllocObjects, g.FreedBytes, g.FreedObjects, g.AllocBytes - g.FreedBytes}
		},
	}
)
