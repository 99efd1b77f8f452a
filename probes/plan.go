package probes

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// A plan assigns the values of a row to the slots of an event. kernelRow gives the kernel side the same
// order.
type plan struct {
	row                                     *Row
	captures                                []value
	addr, size, handle, ctx, device, stream int  // slots, -1 for none
	extra                                   int  // the first of len(row.Extra)
	arguments                               bool // the kernel side sends the arguments, not the captures
}

// init makes all plans. Rows never change.
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
	p.arguments = r.class == classTensor
	if len(p.captures) > values {
		panic("probes: row " + r.Symbols[0] + " has too many values")
	}
	return p
}

// fill sets the values of e. Its header is complete.
func (p *plan) fill(e *event.Event, v *[values]uint64) {
	r := p.row
	if p.arguments {
		arguments := *v
		for i, c := range p.captures {
			v[i] = arguments[c.arg]
		}
	}
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
	if p.ctx >= 0 && !failed { // else it is the current context
		e.Ctx = v[p.ctx]
	}
	if p.device >= 0 {
		e.Device = int32(v[p.device])
	}
	if p.stream >= 0 {
		e.Stream = v[p.stream]
		if e.Stream == 0 && strings.HasSuffix(Entries[e.API].Symbol, "_ptsz") {
			e.Stream = event.StreamPerThread // the meaning of 0 there
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

// argument returns the number of argument n for the kernel side of an architecture. A cudaExtent by value
// uses no register on x86-64, where System V passes it on the stack. AAPCS64 (6.8.2, rule B.4) passes the
// address of a copy of a value larger than 16 bytes in one register, and the later arguments move up. The
// extent's fields are arguments 4 to 6 on both (gm_enter).
func (r *Row) argument(n uint8, arch string) uint8 {
	if arch == "arm64" && r.flags&flagExtent != 0 && uint16(n) >= r.stride && n < 4 {
		return n + 1
	}
	return n
}

// kernelRow returns the row in the form of the kernel side of an architecture (GOARCH).
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
