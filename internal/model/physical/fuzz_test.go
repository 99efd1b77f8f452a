package physical

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// decode makes an event of 8 bytes: any operation, few names, sizes of all orders of
// magnitude, times that jump.
func decode(now *uint64, b []byte) *event.Event {
	word := binary.LittleEndian.Uint64(b)
	take := func(n uint64) uint64 {
		v := word % n
		word /= n
		return v
	}
	handle := func() uint64 {
		c := take(3)
		if o := take(5); o > 0 {
			return c<<32 | 0x100 + o
		}
		return c<<32 | c
	}
	*now += 1 + take(64)
	e := &event.Event{
		Time: *now - min(*now, take(4)*40), Proc: event.Process{PID: uint32(1 + take(2)), Start: 1}, TID: uint32(take(3)),
		Op: event.Op(take(uint64(event.OpDescriptorClose-event.OpFork+6))) + event.OpFork, Outer: uint16(take(uint64(len(functions)))),
		Handle: handle(), Part: handle(), Addr: handle(),
	}
	if e.Op > event.OpDescriptorClose+3 {
		e.Op += event.OpObjectExport - event.OpDescriptorClose - 4
		place := &e.Addr
		if e.Op == event.OpObjectExport {
			place = &e.Handle
		}
		*place &= 3
	}
	e.Size = 1 << take(65) * (1 + take(3))
	switch take(4) {
	case 0:
		e.Kind = event.KindSystem
	case 1:
		e.Addr = take(3)
	default:
		e.Kind = event.KindDriver
	}
	if take(16) == 0 {
		e.Result = event.OutOfMemory
	}
	if e.Op <= event.OpExit {
		e.Size, e.Result = 0, event.Success
	}
	e.Device = int32(take(3)) - 1
	e.Stack = take(4)
	return e
}

// check fails where a Ledger contradicts itself.
func check(t *testing.T, l *Ledger) {
	t.Helper()
	held, exports := map[event.Process]map[int32]int64{}, len(l.exports)
	for id, p := range l.procs {
		held[id] = map[int32]int64{}
		for at, m := range p.backing {
			if m.object.ended || m.object.proc != id || (address{m.backs.Space, m.backs.Addr}) != at {
				t.Fatalf("memory of %x is not for what is at %x", m.object.name, at.addr)
			}
		}
		seen := 0
		for o := p.root.first; o != nil; o = o.after(&p.root) {
			if o.op == opDescriptor {
				if o.first == nil || p.descriptors[o.number] != o {
					t.Fatal("a descriptor without clients")
				}
				continue
			}
			if o.op == opExport {
				if l.exports[o.number] != o || o.ended || o.memory == nil || o.first != nil {
					t.Fatalf("the export %x is wrong", o.number)
				}
				exports--
				continue
			}
			seen++
			if l.objects[o.objectID] != o || o.ended || o.op == event.OpNone && o.first == nil {
				t.Fatalf("object %x is wrong", o.name)
			}
		}
		for objectID := range l.objects {
			if objectID.proc == id {
				seen--
			}
		}
		if seen != 0 {
			t.Fatalf("%d objects outside of the tree", -seen)
		}
	}
	if exports != 0 {
		t.Fatalf("%d exports outside of the tree", exports)
	}
	for _, o := range slices.AppendSeq(slices.Collect(maps.Values(l.objects)), maps.Values(l.exports)) {
		m := o.memory
		if m == nil {
			continue
		}
		owners, sum := 0, uint64(0)
		for x, first := m, true; first || x != m; x, first = x.next, false {
			if x.next.prev != x || x.object.ended || x.size != m.size {
				t.Fatal("the ring is wrong")
			}
			if x.owner {
				owners++
			}
		}
		for _, r := range m.rows {
			sum += r.size
			if m.owner && o.op != opExport {
				held[o.proc][r.device] += int64(r.size)
			}
		}
		if owners != 1 || sum != m.size {
			t.Fatalf("%d owners of %d bytes, by rows %d", owners, m.size, sum)
		}
	}
	for id, p := range l.procs {
		if p.exited {
			continue
		}
		for i, bytes := range l.BytesByGPU(id) {
			if bytes != held[id][int32(i)] {
				t.Fatalf("process %v holds %d bytes, by its objects %d", id, bytes, held[id][int32(i)])
			}
		}
		total(l, id)
	}
}

// FuzzApply: no events, however absurd, make a Ledger contradict itself, nor the one
// that its keyframe rebuilds.
func FuzzApply(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for n := range 500 {
		data := make([]byte, 8*n)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l := New(ledger.Options{})
		small := newLedger(ledger.Options{}, 12)
		gone := map[event.Process]bool{} // nothing is told of a process after its end
		for now := uint64(1); len(data) >= 8; data = data[8:] {
			e := decode(&now, data)
			if gone[e.Proc] {
				continue
			}
			apply(l, e)
			apply(small, e)
			check(t, small)
			gone[e.Proc] = e.Op == event.OpExit && !l.Seen(e.Proc)
			if data[7]%64 == 0 {
				l.Forget(e.Proc)
				small.Forget(e.Proc)
				gone[e.Proc] = true
			}
			if data[6]%8 == 0 {
				l.LinkAllocation(&event.Event{Op: event.OpAlloc, Proc: e.Proc, TID: e.TID, Time: e.Time, Addr: e.Addr}, e.Device)
				l.ContextEnd(&event.Event{Proc: e.Proc, TID: e.TID, Time: e.Time})
			}
			check(t, l)
		}
		cut := rebuilt(t, l)
		check(t, cut)
		for id, p := range l.procs {
			if !p.exited && total(l, id) != total(cut, id) {
				t.Fatalf("%d bytes, rebuilt %d", total(l, id), total(cut, id))
			}
		}
	})
}
