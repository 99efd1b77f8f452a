package record

import (
	"encoding/binary"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// bound returns at most how many bytes a record's entry has. It is false for a
// record that breaks the rules of its type, which no reader would accept.
func bound(r Record) (n int, ok bool) {
	const number = binary.MaxVarintLen64
	text := func(list ...string) {
		for _, s := range list {
			n += 2*number + min(len(s), maxString)
		}
	}
	n, ok = 16*number, true
	switch r := r.(type) {
	case *Trace:
		text(r.Version, r.CommandLine, r.Target, r.StackMode, r.Driver)
		text(r.APIs...)
	case *Stack:
		n += (len(r.Frames) + len(r.Modules)) * number
		ok = len(r.Frames) <= maxFrames && len(r.Modules) <= maxStackModules
		for _, p := range r.Frames {
			ok = ok && p != nil
		}
	case *Name:
		if r.Place == nil || !wellNamed(r.Location) {
			return 0, false
		}
		n += locationBound(r.Location)
	case *Process:
		text(r.Name)
		for _, field := range r.Who.Fields() {
			text(*field)
		}
		n += mappingBound(r.Program)
	case *Reading:
		for i := range r.Devices {
			d := &r.Devices[i]
			n += 9 * number
			text(d.UUID, d.Label, d.Name)
			for _, p := range d.Processes {
				n += 4 * number
				text(p.Name)
			}
		}
		for _, u := range r.Uses {
			n += 6 * number
			ok = ok && u.Device >= 0 && u.Device < len(r.Devices)
		}
		for _, o := range r.Ordinals {
			n += 4 * number
			ok = ok && o.Device >= 0 && o.Device < len(r.Devices)
		}
	case *Loss:
		for _, c := range r.Counters {
			n += number
			text(c.Name, c.Help)
		}
		text(r.Notes...)
	case *Note:
		text(r.Text)
	case *Steps:
		n += len(r.Numbers) * number
		ok = len(r.Numbers) <= MaxNumbers
	case *Heap:
		return heapBound(r)
	case *Moment, *Sweep, *Reported, *Cut, *Tensors:
	default:
		ok = false
	}
	return n, ok
}

// wellNamed reports whether a location is one that outputs may be given.
func wellNamed(l *snapshot.Location) bool { return l != nil && len(l.Lines) > 0 }

func locationBound(l *snapshot.Location) int {
	n := 4*binary.MaxVarintLen64 + mappingBound(l.Mapping)
	for i := range l.Lines {
		line := &l.Lines[i]
		n += 9 * binary.MaxVarintLen64
		n += min(len(line.Function), maxString) + min(len(line.System), maxString)
		n += min(len(line.File), maxString) + min(len(line.Reason), maxString)
	}
	return n
}

func mappingBound(m *snapshot.Mapping) int {
	if m == nil {
		return binary.MaxVarintLen64
	}
	return 10*binary.MaxVarintLen64 + min(len(m.Path), maxString) + min(len(m.BuildID), maxString)
}
