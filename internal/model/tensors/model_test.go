package tensors

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A model keeps what it is told in lists, and looks through all of them for each
// answer.
type model struct {
	extents []modelExtent
	tensors []modelTensor
	peak    map[*ledger.Site]int64
	handed  map[modelExtent]bool // a tensor was in it
	private map[modelExtent]holder.PoolID
}

type modelExtent struct {
	from, to uint64
	at       *ledger.Site
}

type modelTensor struct {
	addr, size uint64
	in         []modelExtent
	bytes      []uint64
}

// inuse returns the bytes in tensors by call site, nil for memory not seen allocated.
func (m *model) inuse() map[*ledger.Site]int64 {
	out := map[*ledger.Site]int64{}
	for _, t := range m.tensors {
		for i, x := range t.in {
			out[x.at] += int64(t.bytes[i])
		}
	}
	return out
}

func (m *model) used(x modelExtent) (sum uint64) {
	for _, t := range m.tensors {
		for i, in := range t.in {
			if in == x {
				sum += t.bytes[i]
			}
		}
	}
	return sum
}

// make tells whether there is room.
func (m *model) make(addr, size uint64) bool {
	m.drop(addr)
	t := modelTensor{addr: addr, size: size}
	left := size
	for _, x := range m.extents {
		lo, hi := max(addr, x.from), min(addr+size, x.to)
		if lo >= hi {
			continue
		}
		if m.used(x)+hi-lo > x.to-x.from {
			return false
		}
		t.in, t.bytes = append(t.in, x), append(t.bytes, hi-lo)
		left -= hi - lo
	}
	if left > 0 {
		t.in, t.bytes = append(t.in, modelExtent{}), append(t.bytes, left)
	}
	m.tensors = append(m.tensors, t)
	for _, x := range t.in {
		m.handed[x] = true
	}
	return true
}

// drop tells whether there was a tensor at addr.
func (m *model) drop(addr uint64) bool {
	n := len(m.tensors)
	m.tensors = slices.DeleteFunc(m.tensors, func(t modelTensor) bool { return t.addr == addr })
	return len(m.tensors) < n
}

func (m *model) free(addr uint64) {
	if m.drop(addr) {
		return
	}
	for _, x := range m.extents {
		if x.from <= addr && addr < x.to {
			m.handed[x] = true
		}
	}
}

func (m *model) end(from, to uint64) {
	kept := m.extents[:0:0]
	for _, x := range m.extents {
		if x.from >= to || x.to <= from {
			kept = append(kept, x)
			continue
		}
		delete(m.handed, x)
		delete(m.private, x)
		m.tensors = slices.DeleteFunc(m.tensors, func(t modelTensor) bool { return slices.Contains(t.in, x) })
	}
	m.extents = kept
}

// cell is what all addresses and sizes of TestModel are multiples of, times its scale.
const cell = 0x80

// segments looks at each cell of each segment. No two extents overlap.
func (m *model) segments(scale uint64) map[segmentKey]Segments {
	handed := map[*ledger.Site]bool{}
	for _, x := range m.extents {
		handed[x.at] = handed[x.at] || m.handed[x]
	}
	class := func(x modelExtent) Class {
		switch size, vmm := x.to-x.from, x.at.Kind == event.KindVMM; {
		case vmm && size > 2<<20:
			return ExpandableLarge
		case vmm:
			return ExpandableSmall
		case size == 2<<20:
			return Small
		case size == 20<<20:
			return Large
		}
		return Larger
	}
	// joins tells whether b goes on where a ends.
	joins := func(a, b modelExtent) bool {
		return handed[a.at] && handed[b.at] && a.to == b.from && a.to-a.from == b.to-b.from && a.at.Kind == event.KindVMM && b.at.Kind == event.KindVMM &&
			m.private[a] == m.private[b]
	}
	out := map[segmentKey]Segments{}
	for _, first := range m.extents {
		c := class(first)
		if !handed[first.at] || slices.ContainsFunc(m.extents, func(x modelExtent) bool { return joins(x, first) }) {
			continue
		}
		s := Segments{Device: event.NoDevice, Private: m.private[first], Class: c, Count: 1}
		to := first.from
		for x, i := first, 0; i >= 0; {
			to = x.to
			if s.Device == event.NoDevice {
				s.Device = x.at.Device
			}
			used := m.used(x)
			s.Reserved += int64(x.to - x.from)
			s.Allocated += int64(used)
			if used == 0 {
				s.Releasable += int64(x.to - x.from)
			}
			if i = slices.IndexFunc(m.extents, func(y modelExtent) bool { return joins(x, y) }); i >= 0 {
				x = m.extents[i]
			}
		}
		if s.Device == event.NoDevice && slices.ContainsFunc(m.tensors, func(t modelTensor) bool { return first.from <= t.addr && t.addr < to }) {
			s.Device = 0
		}
		// A block is units of 512 bytes side by side, all of them free.
		unit, run := max(512, cell*scale), int64(0)
		for at := first.from; at+unit <= to; at += unit {
			if slices.ContainsFunc(m.tensors, func(t modelTensor) bool { return t.addr < at+unit && t.addr+t.size > at }) {
				run = 0
				continue
			}
			if run == 0 {
				s.Blocks++
			}
			run += int64(unit)
			s.Largest = max(s.Largest, run)
		}
		key := segmentKey{s.Device, s.Private, c}
		sum := out[key]
		sum.Device, sum.Private, sum.Class = s.Device, s.Private, c
		sum.Add(&s)
		out[key] = sum
	}
	return out
}

// TestModel: after each of many random events, honest ones and others, pools, peaks,
// rows and segments are those of the model. With the larger scale segments are of every
// class, with the smaller one what is free between tensors may be less than a block.
func TestModel(t *testing.T) {
	var seen [NumClasses]int
	for seed := range uint64(40) {
		scale := [...]uint64{1, 1 << 12}[seed%2]
		r := rand.New(rand.NewPCG(seed, 1))
		l := New(ledger.Options{})
		proc := event.Process{PID: 7, Start: 1}
		l.process(proc)
		sites := []*ledger.Site{{}, {}, {}}
		sites[0].Kind, sites[1].Kind, sites[2].Kind = event.KindDevice, event.KindVMM, event.KindVMM
		sites[1].Device, sites[2].Device = 1, event.NoDevice
		m := &model{peak: map[*ledger.Site]int64{}, handed: map[modelExtent]bool{}, private: map[modelExtent]holder.PoolID{}}
		for now := uint64(1); now < 600; now++ {
			addr := 0x1000 + uint64(r.IntN(64))*2*cell*scale
			size := uint64(1+r.IntN(10)) * cell * scale
			var what string
			switch n := r.IntN(21); {
			case n == 20:
				pool := []holder.PoolID{{First: 1}, {Second: 1}, holder.UnknownPool}[r.IntN(3)]
				what = fmt.Sprintf("pool %x %x %s", addr, size, pool)
				l.Apply(&event.Event{Op: event.OpPrivatePoolMemory, Time: now, Proc: proc, Addr: addr, Size: size, Handle: pool.First, Part: pool.Second})
				for _, x := range m.extents {
					if x.from < addr+size && addr < x.to {
						m.private[x] = pool
					}
				}
			case n < 9:
				what = fmt.Sprintf("make %x %x", addr, size)
				l.Apply(&event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: now, Proc: proc, Addr: addr, Size: size, Handle: event.NoTotal, Part: event.NoTotal})
				m.make(addr, size)
			case n < 15:
				if len(m.tensors) > 0 && r.IntN(4) > 0 {
					addr = m.tensors[r.IntN(len(m.tensors))].addr
				}
				what = fmt.Sprintf("free %x", addr)
				l.Apply(&event.Event{Op: event.OpTensorFree, Time: now, Proc: proc, Addr: addr, Handle: event.NoTotal, Part: event.NoTotal})
				m.free(addr)
			case n < 17:
				at := sites[r.IntN(len(sites))]
				if len(m.extents) > 0 && r.IntN(3) > 0 { // a page beside another
					x := m.extents[r.IntN(len(m.extents))]
					addr, size = x.to, (x.to-x.from)/4
				}
				what = fmt.Sprintf("begin %x %x", addr, 4*size)
				l.began(proc, addr, addr+4*size, at)
				m.end(addr, addr+4*size)
				m.extents = append(m.extents, modelExtent{addr, addr + 4*size, at})
			case n < 19:
				if len(m.extents) > 0 {
					x := m.extents[r.IntN(len(m.extents))]
					addr, size = x.from, x.to-x.from
				}
				what = fmt.Sprintf("end %x %x", addr, size)
				l.ended(proc, addr, addr+size)
				m.end(addr, addr+size)
			default:
				what = "mark"
				l.MarkPeak(proc)
				m.peak = m.inuse()
			}
			compareModel(t, fmt.Sprintf("seed %d, event %d: %s", seed, now, what), l, m, sites)
			got := map[segmentKey]Segments{}
			for _, s := range l.Segments(proc) {
				got[segmentKey{s.Device, s.Private, s.Class}] = s
				seen[s.Class]++
			}
			if want := m.segments(scale); !maps.Equal(got, want) {
				t.Errorf("seed %d, event %d: %s: segments\n%+v, want\n%+v", seed, now, what, got, want)
			}
			if t.Failed() {
				return
			}
		}
	}
	for c, n := range seen {
		if n == 0 {
			t.Errorf("there were no segments of class %d", c)
		}
	}
}

func compareModel(t *testing.T, when string, l *Ledger, m *model, sites []*ledger.Site) {
	t.Helper()
	want := m.inuse()
	got := map[*ledger.Site]Pool{}
	for _, pool := range l.Pools {
		got[pool.Site] = pool
	}
	handed := map[*ledger.Site]int{}
	for _, x := range m.extents {
		if m.handed[x] {
			handed[x.at]++
		}
	}
	for _, at := range append(sites, nil) {
		if x := got[at]; x.Inuse != want[at] || x.Peak != m.peak[at] || x.HandedExtents != handed[at] {
			t.Errorf("%s: pool %p has %d, %d at the peak, in %d; want %d, %d, %d", when, at, x.Inuse, x.Peak, x.HandedExtents, want[at], m.peak[at], handed[at])
		}
	}
	var live, rows, bytes int64
	for _, x := range m.tensors {
		live++
		bytes += int64(x.size)
	}
	for s := range l.Rows.Sites {
		rows += s.InuseObjects
		bytes -= s.InuseBytes
	}
	if rows != live || bytes != 0 {
		t.Errorf("%s: %d rows, want %d; %d bytes less", when, rows, live, bytes)
	}
}
