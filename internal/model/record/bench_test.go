package record

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// linear is a stream of cuMemAlloc_v2 and cuMemFree_v2: 2 processes of 4 threads,
// 500 stacks, from each sizes of 512 bytes to 64 MiB, addresses used again.
func linear(n int) []event.Event {
	r := rand.New(rand.NewPCG(1, 2))
	type owned struct {
		proc, thread int
		addr         uint64
	}
	procs := [2]event.Process{{PID: 4711, Start: 8_123_450_000_000}, {PID: 4712, Start: 8_123_460_000_000}}
	var live []owned
	var free [2][]uint64
	top := [2]uint64{0x7f1200000000, 0x7f1200000000}
	now := uint64(8_200_000_000_000)
	sizes := make([][4]uint64, 500)
	for i := range sizes {
		for j := range sizes[i] {
			sizes[i][j] = 512 << r.IntN(17) * uint64(1+r.IntN(3)) / 2 &^ 511
			sizes[i][j] = max(512, sizes[i][j])
		}
	}
	out := make([]event.Event, 0, n)
	for len(out) < n {
		now += 500 + r.Uint64N(6000)
		if len(live) > 4000 || len(live) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(live))
			l := live[i]
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			free[l.proc] = append(free[l.proc], l.addr)
			out = append(out, event.Event{
				Time: now, Proc: procs[l.proc], TID: uint32(5000 + 10*l.proc + l.thread), Op: event.OpFree, Kind: event.KindDevice,
				API: 7, Device: 0, Addr: l.addr, Ctx: 0x55d000001000,
			})
			continue
		}
		p, th, s := r.IntN(2), r.IntN(4), r.IntN(500)
		size := sizes[s][r.IntN(4)*r.IntN(2)]
		var addr uint64
		if k := len(free[p]); k > 0 && r.IntN(8) != 0 {
			i := r.IntN(k)
			addr = free[p][i]
			free[p][i] = free[p][k-1]
			free[p] = free[p][:k-1]
		} else {
			addr = top[p]
			top[p] += (size + 2<<20 - 1) &^ (2<<20 - 1)
		}
		live = append(live, owned{p, th, addr})
		out = append(out, event.Event{
			Time: now, Proc: procs[p], TID: uint32(5000 + 10*p + th), Op: event.OpAlloc, Kind: event.KindDevice,
			API: 3, Device: 0, Addr: addr, Size: size, Ctx: 0x55d000001000, Stack: uint64(s)*0x9e3779b97f4a7c15 + 1,
		})
	}
	return out
}

// virtual is a stream of cuMemCreate, cuMemMap, cuMemUnmap and cuMemRelease of
// 2 MiB each, as expandable segments make them.
func virtual(n int) []event.Event {
	r := rand.New(rand.NewPCG(3, 4))
	proc := event.Process{PID: 4711, Start: 8_123_450_000_000}
	now := uint64(8_200_000_000_000)
	base := event.Event{Proc: proc, TID: 4711, Kind: event.KindVMM, Ctx: 0x55d000001000}
	out := make([]event.Event, 0, n)
	add := func(op event.Op, api uint16, addr, size, handle, stack uint64) {
		now += 1000 + r.Uint64N(12000)
		ev := base
		ev.Time, ev.Op, ev.API, ev.Addr, ev.Size, ev.Handle, ev.Stack = now, op, api, addr, size, handle, stack
		out = append(out, ev)
	}
	handle := uint64(0x560000000000)
	for len(out) < n {
		segment := 0x302000000 + r.Uint64N(1<<16)*(2<<20)
		stack := (1 + r.Uint64N(50)) * 0x9e3779b97f4a7c15
		count := 1 + r.Uint64N(40)
		first := handle
		for i := range count {
			handle += 0x130
			add(event.OpHandleCreate, 20, 0, 2<<20, handle, stack)
			add(event.OpMap, 21, segment+i*(2<<20), 2<<20, handle, stack)
		}
		for i := range count {
			add(event.OpUnmap, 22, segment+i*(2<<20), 2<<20, 0, 0)
			add(event.OpHandleRelease, 23, 0, 0, first+0x130*(i+1), 0)
		}
	}
	return out[:n]
}

// backed is virtual with what the kernel driver does inside of it: each handle
// is an object of memory of its own.
func backed(n int) []event.Event {
	const client, device = 0xc1d0001a, 0x5c000001
	var out []event.Event
	object := uint64(client<<32 | 0x5c000100)
	objects := map[uint64]uint64{}
	for _, ev := range virtual(n) {
		inside := ev
		inside.Time, inside.Kind, inside.API, inside.Outer, inside.Ctx = ev.Time-300, event.KindDriver, 40, ev.API, 0
		switch ev.Op {
		case event.OpHandleCreate:
			object++
			objects[ev.Handle] = object
			inside.Op, inside.Handle, inside.Part = event.OpObjectMemory, object, client<<32|device
			out = append(out, inside)
		case event.OpHandleRelease:
			inside.Op, inside.Handle = event.OpObjectFree, objects[ev.Handle]
			out = append(out, inside)
		}
		out = append(out, ev)
	}
	return out[:n]
}

var streams = []struct {
	name string
	make func(n int) []event.Event
}{{"linear", linear}, {"virtual", virtual}, {"backed", backed}}

// An event takes few bytes, also when few come in the time of a block.
func TestBytesPerEvent(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 1.8 million events")
	}
	for _, s := range streams {
		for _, c := range []struct{ each, limit int }{{1 << 20, 11}, {1000, 14}, {100, 18}} {
			f := &nowhere{}
			w, err := newWriter(f, WriterOptions{}, layout{}, maxPayload, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			const n = 200_000
			for i, ev := range s.make(n) {
				if i%c.each == 0 {
					w.mu.Lock()
					w.flushBlock()
					w.mu.Unlock()
				}
				w.Append(&ev)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got := float64(f.size) / n
			t.Logf("%s, at least every %d events a block: %.1f bytes an event", s.name, c.each, got)
			if got > float64(c.limit) {
				t.Errorf("want at most %d", c.limit)
			}
		}
	}
}

// nowhere is a disk that takes everything.
type nowhere struct{ size int64 }

func (f *nowhere) WriteAt(b []byte, o int64) (int, error) {
	f.size = max(f.size, o+int64(len(b)))
	return len(b), nil
}
func (f *nowhere) Truncate(int64) error { return nil }
func (f *nowhere) Close() error         { return nil }

func BenchmarkAppend(b *testing.B) {
	for _, s := range streams {
		b.Run(s.name, func(b *testing.B) {
			events := s.make(1 << 20)
			f := &nowhere{}
			w, err := newWriter(f, WriterOptions{}, layout{}, maxPayload, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				w.Append(&events[i&(1<<20-1)])
				i++
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
			if n := w.Loss()[lossNotRecorded].Value; n > 0 {
				b.Errorf("%d records lost", n)
			}
			b.ReportMetric(float64(f.size)/float64(i), "bytes/event")
		})
	}
}

func BenchmarkNext(b *testing.B) {
	for _, s := range streams {
		b.Run(s.name, func(b *testing.B) {
			events := s.make(1 << 20)
			records := make([]Record, len(events))
			for i := range events {
				records[i] = &events[i]
			}
			data := encoded(b, maxPayload, records...)
			b.ReportAllocs()
			var r *Reader
			for b.Loop() {
				for {
					if r == nil {
						r, _ = NewReader(bytes.NewReader(data), int64(len(data)))
					}
					if _, err := r.Next(); err == nil {
						break
					} else if !errors.Is(err, io.EOF) {
						b.Fatal(err)
					}
					r = nil
				}
			}
		})
	}
}
