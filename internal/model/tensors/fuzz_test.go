package tensors

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// fuzzBounds are small, so that they are reached.
var fuzzBounds = ledger.Options{MaxLive: 24, MaxSites: 8}

// A feed applies events as a hostile process has them sent: few addresses, sizes of all
// orders of magnitude, times that jump back, totals that are not true.
type feed struct {
	l      *Ledger
	driver *ledger.Ledger
	now    uint64
}

func newFeed() *feed {
	f := &feed{l: New(fuzzBounds), now: 1000}
	f.driver = newDriver(f.l, fuzzBounds)
	return f
}

// apply applies what 8 bytes say.
func (f *feed) apply(b []byte) {
	word := binary.LittleEndian.Uint64(b)
	take := func(n uint64) uint64 {
		v := word % n
		word /= n
		return v
	}
	f.now += 1 + take(16)
	what := take(32)
	e := &event.Event{Time: f.now - min(take(4)*20, f.now), Proc: event.Process{PID: uint32(1 + take(2)), Start: 1}, TID: uint32(take(3)),
		Addr: 0x1000 * (1 + take(16)), Stack: 1 + take(12), Device: int32(take(3)) - 1}
	switch size := take(6); size {
	case 0:
		e.Size = 1 << take(64)
	case 1:
		e.Size = ^uint64(0) << take(64)
	default:
		e.Size = 0x800 * (size - 2)
	}
	e.Handle, e.Part = take(5)*0x1000-1, take(5)*0x1000-1
	switch {
	case what < 14:
		e.Op, e.Kind = event.OpTensorAlloc, event.KindTensor
		f.l.Apply(e)
	case what < 20:
		e.Op = event.OpTensorFree
		f.l.Apply(e)
	case what < 25:
		e.Op, e.Kind, e.Size = event.OpAlloc, event.KindDevice, 4*e.Size
		f.driver.Apply(e)
	case what < 28:
		e.Op = event.OpFree
		f.driver.Apply(e)
	case what == 28 && take(2) == 0:
		f.l.MarkPeak(e.Proc)
	case what == 28: // of a private pool's window, or of a capture
		which := take(2)
		if take(3) == 0 {
			e.Op = []event.Op{event.OpCaptureBegin, event.OpCaptureEnd}[which]
			break
		}
		e.Op = []event.Op{event.OpPrivatePoolBegin, event.OpPrivatePoolEnd}[which]
		f.l.Apply(e)
	case what == 29:
		e.Op, e.Size = event.OpExec, 0
		f.l.Apply(e)
		f.driver.Apply(e)
	case take(8) != 0:
	case what == 30:
		e.Op, e.Size = event.OpExit, 0
		f.driver.Apply(e)
		f.l.Apply(e)
		if take(2) == 0 {
			f.driver.Release(e.Proc)
			f.l.Release(e.Proc)
		}
	default:
		f.driver.Forget(e.Proc)
		f.l.Forget(e.Proc)
	}
	f.l.Follow(e)
	for range f.l.TakePieces {
		continue
	}
}

// check fails where a Ledger contradicts itself: rows, tensors, extents, pools and
// devices are one memory.
func check(t *testing.T, l *Ledger) {
	t.Helper()
	rows := map[event.Process]int64{}
	for s := range l.Rows.Sites {
		rows[s.Proc] += s.InuseBytes
	}
	live := 0
	for id, p := range l.procs {
		used, pools := map[*extent]uint64{}, map[*Pool]int64{}
		devices := map[int32]int64{}
		handed, extents := map[*Pool]int{}, map[*Pool]int{}
		for addr, x := range p.tensors {
			devices[x.device] += int64(x.size)
			sum := uint64(0)
			for _, in := range append([]part{x.first}, x.more...) {
				sum += in.bytes
				if in.in == nil {
					pools[p.memory.outside[x.device]] += int64(in.bytes)
					continue
				}
				if _, ok := in.in.tensors[addr]; !ok {
					t.Errorf("an extent has nothing of a tensor in it")
				}
				used[in.in] += in.bytes
				pools[in.in.pool] += int64(in.bytes)
			}
			if sum != x.size {
				t.Errorf("parts have %d bytes of %d", sum, x.size)
			}
		}
		if len(p.windows) > maxWindows || p.ended && p.windows != nil {
			t.Errorf("%d windows are kept", len(p.windows))
		}
		p.memory.extents.Ascend(func(x *extent) bool {
			if x.used != used[x] || x.used > x.to-x.from {
				t.Errorf("%d bytes of %d are in tensors, want %d", x.used, x.to-x.from, used[x])
			}
			delete(used, x)
			extents[x.pool]++
			if x.handed {
				handed[x.pool]++
			}
			return true
		})
		if p.ended {
			continue
		}
		live += len(p.tensors)
		if len(used) > 0 {
			t.Errorf("tensors are in %d extents that ended", len(used))
		}
		for _, pool := range p.memory.pools {
			if pool.Inuse != pools[pool] || pool.extents != extents[pool] || pool.HandedExtents != handed[pool] {
				t.Errorf("a pool has %+v, want %d bytes in use, %d extents, %d handed out", pool, pools[pool], extents[pool], handed[pool])
			}
		}
		for _, pool := range p.memory.outside {
			if pool.Inuse != pools[pool] {
				t.Errorf("%d bytes outside, want %d", pool.Inuse, pools[pool])
			}
		}
		sum := int64(0)
		for _, d := range p.devices {
			if d.Bytes != devices[d.Index] {
				t.Errorf("device %d has %d bytes, want %d", d.Index, d.Bytes, devices[d.Index])
			}
			sum += d.Bytes
		}
		if sum != rows[id] || sum < 0 {
			t.Errorf("process %d has %d bytes in tensors, and %d in rows", id.PID, sum, rows[id])
		}
	}
	if live > fuzzBounds.MaxLive {
		t.Errorf("%d tensors are kept", live)
	}
}

// FuzzLedger: whatever a process reports, the layer does not contradict itself, and what
// a keyframe rebuilds does not either.
func FuzzLedger(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		data := make([]byte, 8*200)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		feed := newFeed()
		for ; len(data) >= 8 && !t.Failed(); data = data[8:] {
			feed.apply(data)
			check(t, feed.l)
		}
		again := newFeed()
		copyFields(t, feed.driver.Visit, again.driver.Visit)
		copyFields(t, feed.l.Visit, again.l.Visit)
		check(t, again.l)
		for id := range feed.l.procs {
			if again.l.Bytes(id) != feed.l.Bytes(id) {
				t.Errorf("a keyframe rebuilds %d bytes of %d", again.l.Bytes(id), feed.l.Bytes(id))
			}
		}
	})
}

// copyFields writes fields to a keyframe, and reads them from it.
func copyFields(t testing.TB, from, to func(*record.Fields)) {
	t.Helper()
	var data []byte
	record.WriteFields(record.OfTensors, from, func(r record.Record) { data = append(data, r.(*record.Part).Data...) })
	if !record.ReadFields(data, to) {
		t.Fatal("what was written does not read")
	}
}
