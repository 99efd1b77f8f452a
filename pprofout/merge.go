package pprofout

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// noStack stands in for a stack that could not be captured: pprof shows a
// sample without locations nowhere but in its totals.
var noStack = &snapshot.Location{Lines: []snapshot.Line{{Function: "[no stack]"}}}

// A merged sample is the sum of the samples that share a stack and labels.
type merged struct {
	stack []*snapshot.Location // leaf first, one pointer for each content
	snapshot.Labels
	snapshot.Values
}

// merge returns the samples that have a value, most in use first, in an order
// that depends on their contents alone.
func merge(samples []snapshot.Sample) []*merged {
	type key struct {
		labels snapshot.Labels
		stack  string
	}
	canonical := newCanon()
	byKey := make(map[key]*merged, len(samples))
	var out []*merged
	var id []byte
	for i := range samples {
		s := &samples[i]
		stack := s.Stack
		if len(stack) == 0 {
			stack = []*snapshot.Location{noStack}
		}
		id = id[:0]
		for _, l := range stack {
			id = binary.AppendUvarint(id, uint64(canonical.index(l)))
		}
		k := key{s.Labels, string(id)}
		m := byKey[k]
		if m == nil {
			m = &merged{Labels: s.Labels, stack: make([]*snapshot.Location, len(stack))}
			for j, l := range stack {
				m.stack[j] = canonical.list[canonical.index(l)]
			}
			byKey[k] = m
			out = append(out, m)
		}
		for _, t := range sampleTypes {
			*t.value(&m.Values) += *t.value(&s.Values)
		}
	}
	out = slices.DeleteFunc(out, func(m *merged) bool {
		for _, t := range sampleTypes {
			if *t.value(&m.Values) != 0 {
				return false
			}
		}
		return true
	})
	slices.SortFunc(out, compareMerged)
	return out
}

func compareMerged(a, b *merged) int {
	return cmp.Or(
		cmp.Compare(b.InuseBytes, a.InuseBytes),
		cmp.Compare(b.AllocBytes, a.AllocBytes),
		cmp.Compare(b.AllocObjects, a.AllocObjects),
		cmp.Compare(a.PID, b.PID),
		strings.Compare(a.Process, b.Process),
		strings.Compare(a.Kind, b.Kind),
		strings.Compare(a.API, b.API),
		strings.Compare(a.Runtime, b.Runtime),
		strings.Compare(a.GPU, b.GPU),
		strings.Compare(a.Owner, b.Owner),
		slices.CompareFunc(a.stack, b.stack, compareLocations),
	)
}

func compareLocations(a, b *snapshot.Location) int {
	if a == b {
		return 0
	}
	return cmp.Or(
		slices.CompareFunc(a.Lines, b.Lines, func(a, b snapshot.Line) int {
			return cmp.Or(
				strings.Compare(a.Function, b.Function),
				strings.Compare(a.File, b.File),
				cmp.Compare(a.Line, b.Line),
				strings.Compare(a.System, b.System),
			)
		}),
		cmp.Compare(a.Address, b.Address),
	)
}

// canon gives locations of equal content one index. The snapshot shares most
// of them by pointer; what it does not share (an interpreter's frame seen in
// two processes) is found by content.
type canon struct {
	byPointer map[*snapshot.Location]int
	byContent map[string]int
	mappings  map[*snapshot.Mapping]int
	list      []*snapshot.Location
}

func newCanon() *canon {
	return &canon{
		byPointer: make(map[*snapshot.Location]int),
		byContent: make(map[string]int),
		mappings:  map[*snapshot.Mapping]int{nil: 0},
	}
}

func (c *canon) index(l *snapshot.Location) int {
	if i, ok := c.byPointer[l]; ok {
		return i
	}
	mapping, ok := c.mappings[l.Mapping]
	if !ok {
		mapping = len(c.mappings)
		c.mappings[l.Mapping] = mapping
	}
	var b strings.Builder
	b.WriteString(strconv.FormatUint(l.Address, 16))
	b.WriteByte(' ')
	b.WriteString(strconv.Itoa(mapping))
	for _, line := range l.Lines {
		// Quoted, so that no name can imitate a separator.
		for _, s := range []string{line.Function, line.System, line.File} {
			b.WriteString(strconv.Quote(s))
		}
		b.WriteString(strconv.Itoa(line.Line))
	}
	content := b.String()
	i, ok := c.byContent[content]
	if !ok {
		i = len(c.list)
		c.list = append(c.list, l)
		c.byContent[content] = i
	}
	c.byPointer[l] = i
	return i
}
