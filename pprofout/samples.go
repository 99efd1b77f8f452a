package pprofout

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// A sum is what the samples with one stack and one set of labels add up to.
type sum struct {
	stack []*profile.Location // leaf first
	snapshot.Labels
	snapshot.Values
}

// sums returns those that have a value, most in use first, in an order that
// depends on their contents alone.
func (t *tables) sums(samples []snapshot.Sample) []*sum {
	type key struct {
		labels snapshot.Labels
		stack  string
	}
	byKey := make(map[key]*sum, len(samples))
	var out []*sum
	var id []byte
	for i := range samples {
		s := &samples[i]
		stack := s.Frames()
		id = id[:0]
		for _, l := range stack {
			id = binary.AppendUvarint(id, t.location(l).ID)
		}
		k := key{s.Labels, string(id)}
		m := byKey[k]
		if m == nil {
			m = &sum{Labels: s.Labels, stack: make([]*profile.Location, len(stack))}
			for j, l := range stack {
				m.stack[j] = t.location(l)
			}
			byKey[k] = m
			out = append(out, m)
		}
		m.Add(&s.Values)
	}
	out = slices.DeleteFunc(out, func(m *sum) bool { return !m.Succeeded() })
	slices.SortFunc(out, compare)
	return out
}

func compare(a, b *sum) int {
	if c := cmp.Or(
		cmp.Compare(b.InuseBytes, a.InuseBytes),
		cmp.Compare(b.AllocBytes, a.AllocBytes),
		cmp.Compare(b.AllocObjects, a.AllocObjects),
	); c != 0 {
		return c
	}
	if c := a.Labels.Compare(&b.Labels); c != 0 {
		return c
	}
	return slices.CompareFunc(a.stack, b.stack, compareLocations)
}

func compareLocations(a, b *profile.Location) int {
	if a == b {
		return 0
	}
	return cmp.Or(
		slices.CompareFunc(a.Line, b.Line, func(a, b profile.Line) int {
			return cmp.Or(
				strings.Compare(a.Function.Name, b.Function.Name),
				strings.Compare(a.Function.Filename, b.Function.Filename),
				cmp.Compare(a.Line, b.Line),
				strings.Compare(a.Function.SystemName, b.Function.SystemName),
			)
		}),
		cmp.Compare(a.Address, b.Address),
	)
}
