package pprof

import (
	"encoding/binary"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// tables have one of each mapping, location and function of a snapshot. The
// snapshot shares most locations by pointer; what it does not share (an
// interpreter's frame seen in two processes) is found by content.
type tables struct {
	mappings  map[snapshot.Mapping]*profile.Mapping // by Key
	order     []*profile.Mapping                    // by ID
	locations map[*snapshot.Location]*profile.Location
	contents  map[string]*profile.Location
	functions map[function]*profile.Function
	content   []byte // of one location
}

type function struct{ name, system, file string }

// newTables begins with mappings, and has room for what so many frames refer to.
func newTables(mappings []*snapshot.Mapping, frames int) *tables {
	// Most frames are in several stacks: this is enough for a process's, and little.
	room := min(frames/2, 4096)
	t := &tables{
		mappings:  make(map[snapshot.Mapping]*profile.Mapping, len(mappings)),
		locations: make(map[*snapshot.Location]*profile.Location, room),
		contents:  make(map[string]*profile.Location, room),
		functions: make(map[function]*profile.Function, room),
	}
	for _, m := range mappings {
		t.mapping(m)
	}
	return t
}

func (t *tables) location(l *snapshot.Location) *profile.Location {
	if loc := t.locations[l]; loc != nil {
		return loc
	}
	loc := &profile.Location{ID: uint64(len(t.contents) + 1), Address: l.Address, Line: make([]profile.Line, len(l.Lines))}
	t.content = binary.AppendUvarint(t.content[:0], l.Address)
	if l.Mapping != nil {
		loc.Mapping = t.mapping(l.Mapping)
		t.content = binary.AppendUvarint(t.content, loc.Mapping.ID)
	} else {
		t.content = append(t.content, 0)
	}
	for i := range l.Lines {
		line := profile.Line{Function: t.function(&l.Lines[i]), Line: int64(l.Lines[i].Line)}
		loc.Line[i] = line
		t.content = binary.AppendUvarint(t.content, line.Function.ID)
		t.content = binary.AppendVarint(t.content, line.Line)
	}
	if same := t.contents[string(t.content)]; same != nil {
		loc = same
	} else {
		t.contents[string(t.content)] = loc
	}
	t.locations[l] = loc
	return loc
}

func (t *tables) function(l *snapshot.Line) *profile.Function {
	k := function{render.Clean(l.Function), render.Clean(l.System), render.Clean(l.File)}
	if k.system == k.name {
		// go tool pprof would simplify a name that is equal to the system name, and
		// leave nothing of "<module>".
		k.system = ""
	}
	f := t.functions[k]
	if f == nil {
		f = &profile.Function{ID: uint64(len(t.functions) + 1), Name: k.name, SystemName: k.system, Filename: k.file}
		t.functions[k] = f
	}
	return f
}

func (t *tables) mapping(m *snapshot.Mapping) *profile.Mapping {
	pm := t.mappings[m.Key()]
	if pm == nil {
		pm = &profile.Mapping{
			ID:      uint64(len(t.order) + 1),
			Start:   m.Start,
			Limit:   m.Limit,
			Offset:  m.Offset,
			File:    render.Clean(m.Path),
			BuildID: render.Clean(m.BuildID),
			// Also without symbols every location has a line,
			// "module+0xoffset" at the least. Without this go tool pprof looks
			// for the binaries on the machine that it runs on, and complains
			// about each.
			HasFunctions: true,
		}
		t.mappings[m.Key()] = pm
		t.order = append(t.order, pm)
	}
	pm.HasLineNumbers = pm.HasLineNumbers || m.HasLines
	return pm
}

// fill puts into p what its samples refer to, numbered in the order of use.
// Only mappings are in the snapshot's order. The first one is always there: pprof regards
// it as the main program.
func (t *tables) fill(p *profile.Profile) {
	for _, l := range t.contents {
		l.ID = 0
	}
	for _, f := range t.functions {
		f.ID = 0
	}
	used := make(map[*profile.Mapping]bool, len(t.order))
	for _, s := range p.Sample {
		for _, l := range s.Location {
			if l.ID != 0 {
				continue
			}
			p.Location = append(p.Location, l)
			l.ID = uint64(len(p.Location))
			for _, line := range l.Line {
				if f := line.Function; f.ID == 0 {
					p.Function = append(p.Function, f)
					f.ID = uint64(len(p.Function))
				}
			}
			if m := l.Mapping; m != nil {
				used[m] = true
				m.HasFilenames = m.HasFilenames || slices.ContainsFunc(l.Line, func(l profile.Line) bool { return l.Function.Filename != "" })
				m.HasInlineFrames = m.HasInlineFrames || len(l.Line) > 1
			}
		}
	}
	for i, m := range t.order {
		if i == 0 || used[m] {
			p.Mapping = append(p.Mapping, m)
			m.ID = uint64(len(p.Mapping))
		}
	}
	if len(p.Mapping) == 0 {
		// go tool pprof puts a nameless mapping into a profile that has none,
		// and then reports that it finds no binary for it.
		p.Mapping = []*profile.Mapping{{ID: 1, HasFunctions: true}}
	}
}
