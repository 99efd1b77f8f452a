package probes

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A plan says which slot of a record holds which of a row's values. The kernel
// side is told the same order (kernelRow), so slots exist in one place only.
type plan struct {
	row                                     *Row
	captures                                []value
	addr, size, handle, ctx, device, stream int // slots, -1 for none
	extra                                   int // the first of len(row.Extra)
}

// Plans are made once: rows never change.
func init() {
	for i := range Table {
		Table[i].plan = newPlan(&Table[i])
	}
	Entries[0].plan = newPlan(Entries[0].Row)
}

func newPlan(r *Row) *plan {
	p := &plan{row: r}
	if r.flags&flagName != 0 {
		p.captures = make([]value, 4) // the name's four words
	}
	slot := func(v value) int {
		if !v.present {
			return -1
		}
		p.captures = append(p.captures, v)
		return len(p.captures) - 1
	}
	p.addr, p.size, p.handle = slot(r.Addr), slot(r.Size), slot(r.Handle)
	p.ctx, p.device, p.stream = slot(r.Ctx), slot(r.Device), slot(r.Stream)
	p.extra = len(p.captures)
	p.captures = append(p.captures, r.Extra...)
	if len(p.captures) > values {
		panic("probes: row " + r.Symbols[0] + " has too many values")
	}
	return p
}

// fill completes e, of which the record's header is filled in.
func (p *plan) fill(e *event.Event, v *[values]uint64) {
	r := p.row
	failed := e.Result != event.Success
	for i := range p.captures {
		if failed && p.captures[i].output {
			v[i] = 0
		}
	}
	e.Op, e.Kind, e.Space = r.Op, r.Kind, r.Space
	at := func(slot int) uint64 {
		if slot < 0 {
			return 0
		}
		return v[slot]
	}
	e.Addr, e.Size, e.Handle = at(p.addr), at(p.size), at(p.handle)
	if p.ctx >= 0 && !failed { // else it is the one that is current
		e.Ctx = v[p.ctx]
	}
	if p.device >= 0 {
		e.Device = int32(v[p.device])
	}
	if p.stream >= 0 {
		e.Stream = v[p.stream]
		if e.Stream == 0 && strings.HasSuffix(Entries[e.API].Symbol, "_ptsz") {
			e.Stream = event.StreamPerThread // what 0 means there
		}
	}
	if r.Fix != nil {
		r.Fix(e, v[p.extra:p.extra+len(r.Extra)])
	}
	if e.Size > 1<<63-1 {
		e.Size = 1<<63 - 1
	}
	if e.Kind.Class() == event.ClassHost {
		e.Device = event.NoDevice
	}
}

// kernelCapture and kernelRow mirror gm_capture and gm_row.
type kernelCapture struct {
	Size, Arg uint8
	Off       uint16
}

type kernelRow struct {
	Class, Flags, Stride, _ uint16
	Captures                [values]kernelCapture
}

// argument returns where the kernel side finds argument n on an architecture.
// A cudaExtent by value is no argument register on x86-64, where System V puts
// it on the stack. AAPCS64 (6.8.2, rule B.4) passes the address of a copy of
// what is larger than 16 bytes: one register, and those behind move up. Its
// fields are arguments 4 to 6 on both (gm_enter).
func (r *Row) argument(n uint8, arch string) uint8 {
	if arch == "arm64" && r.flags&flagExtent != 0 && uint16(n) >= r.stride && n < 4 {
		return n + 1
	}
	return n
}

// kernelRow returns the row as the kernel side of an architecture (GOARCH) reads it.
func (p *plan) kernelRow(c class, arch string) kernelRow {
	k := kernelRow{Class: uint16(c), Flags: uint16(p.row.flags), Stride: p.row.stride}
	for i := range k.Captures {
		k.Captures[i].Arg = 7 // always 0
		if i < len(p.captures) && p.captures[i].present {
			v := p.captures[i]
			k.Captures[i] = kernelCapture{Size: v.size, Arg: p.row.argument(v.arg, arch), Off: v.off}
		}
	}
	return k
}
