package pprofout

import (
	"cmp"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// tables fill a profile's mappings, locations and functions on first use.
type tables struct {
	p         *profile.Profile
	order     map[*snapshot.Mapping]int // position in the snapshot
	used      []*snapshot.Mapping       // those in p.Mapping, at the same index
	mappings  map[*snapshot.Mapping]*profile.Mapping
	locations map[*snapshot.Location]*profile.Location
	functions map[function]*profile.Function
}

type function struct{ name, system, file string }

func newTables(p *profile.Profile, mappings []*snapshot.Mapping) *tables {
	t := &tables{
		p:         p,
		order:     make(map[*snapshot.Mapping]int, len(mappings)),
		mappings:  make(map[*snapshot.Mapping]*profile.Mapping),
		locations: make(map[*snapshot.Location]*profile.Location),
		functions: make(map[function]*profile.Function),
	}
	for i, m := range mappings {
		t.order[m] = i
	}
	return t
}

func (t *tables) location(l *snapshot.Location) *profile.Location {
	if loc := t.locations[l]; loc != nil {
		return loc
	}
	loc := &profile.Location{
		ID:      uint64(len(t.p.Location) + 1),
		Mapping: t.mapping(l.Mapping),
		Address: l.Address,
	}
	for i := range l.Lines {
		line := &l.Lines[i]
		loc.Line = append(loc.Line, profile.Line{Function: t.function(line), Line: int64(line.Line)})
		if loc.Mapping != nil && line.File != "" {
			loc.Mapping.HasFilenames = true
		}
	}
	if loc.Mapping != nil && len(l.Lines) > 1 {
		loc.Mapping.HasInlineFrames = true
	}
	t.locations[l] = loc
	t.p.Location = append(t.p.Location, loc)
	return loc
}

func (t *tables) function(l *snapshot.Line) *profile.Function {
	k := function{render.Clean(l.Function), render.Clean(l.System), render.Clean(l.File)}
	if k.system == k.name {
		// go tool pprof takes two equal names for one that it must still
		// simplify, and makes nothing of "<module>".
		k.system = ""
	}
	if f := t.functions[k]; f != nil {
		return f
	}
	f := &profile.Function{
		ID:         uint64(len(t.p.Function) + 1),
		Name:       k.name,
		SystemName: k.system,
		Filename:   k.file,
	}
	t.functions[k] = f
	t.p.Function = append(t.p.Function, f)
	return f
}

func (t *tables) mapping(m *snapshot.Mapping) *profile.Mapping {
	if m == nil {
		return nil
	}
	if pm := t.mappings[m]; pm != nil {
		return pm
	}
	pm := &profile.Mapping{
		Start:   m.Start,
		Limit:   m.Limit,
		Offset:  m.Offset,
		File:    render.Clean(m.Path),
		BuildID: render.Clean(m.BuildID),
		// Also without symbols every location has a line, "module+0xoffset"
		// at the least. Without this go tool pprof looks for the binaries on
		// the machine that it runs on, and complains about each.
		HasFunctions:   true,
		HasLineNumbers: m.HasLines,
	}
	t.mappings[m] = pm
	t.used = append(t.used, m)
	return pm
}

// finish numbers the mappings in the snapshot's order: pprof takes the first
// for the main program.
func (t *tables) finish() {
	slices.SortStableFunc(t.used, func(a, b *snapshot.Mapping) int {
		return cmp.Compare(t.position(a), t.position(b))
	})
	for i, m := range t.used {
		pm := t.mappings[m]
		pm.ID = uint64(i + 1)
		t.p.Mapping = append(t.p.Mapping, pm)
	}
	if len(t.p.Mapping) == 0 {
		// go tool pprof puts a nameless mapping into a profile that has none,
		// and then reports that it finds no binary for it.
		t.p.Mapping = []*profile.Mapping{{ID: 1, HasFunctions: true}}
	}
}

// position is m's place in the snapshot; mappings that only a location names
// come last.
func (t *tables) position(m *snapshot.Mapping) int {
	if i, ok := t.order[m]; ok {
		return i
	}
	return len(t.order)
}
