package physical

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

var proc, other = event.Process{PID: 7, Start: 70}, event.Process{PID: 8, Start: 80}

// functions are those that calls are made in, by Event.Outer.
var functions = []string{"", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuLaunchKernel", "cuMemFree_v2", "cuModuleLoadData", "cuMemAllocHost_v2", "cuCtxSynchronize"}

const (
	inNone uint16 = iota
	inRetain
	inAlloc
	inLaunch
	inFree
	inLoad
	inHost
	inSync
)

const mib = 1 << 20

// The tree of most tests: a client on a descriptor, a device of it.
const (
	client = 0xc1d0001a<<32 | 0xc1d0001a
	device = 0xc1d0001a<<32 | 0x5c000002
	first  = 0xc1d0001a<<32 | 0x5c00000e
	second = 0xc1d0001a<<32 | 0x5c000011

	client2 = 0xc1d00020<<32 | 0xc1d00020
	device2 = 0xc1d00020<<32 | 0x5c000002
	shared2 = 0xc1d00020<<32 | 0x5c000040
	client3 = 0xc1d00030<<32 | 0xc1d00030
	device3 = 0xc1d00030<<32 | 0x5c000002
	shared3 = 0xc1d00030<<32 | 0x5c000040
)

type opt = func(*event.Event)

// ev makes an event of proc at time t; options set the rest.
func ev(t uint64, op event.Op, options ...opt) *event.Event {
	e := &event.Event{Time: t, Proc: proc, TID: 1, Op: op, Stack: 1, Device: event.NoDevice}
	if op == event.OpObjectMemory || op == event.OpObjectShare || op == event.OpObjectImport {
		e.Kind = event.KindDriver
	}
	for _, o := range options {
		o(e)
	}
	return e
}

func of(p event.Process) opt    { return func(e *event.Event) { e.Proc = p } }
func on(thread uint32) opt      { return func(e *event.Event) { e.TID = thread } }
func in(function uint16) opt    { return func(e *event.Event) { e.Outer = function } }
func kind(k event.Kind) opt     { return func(e *event.Event) { e.Kind = k } }
func failed(e *event.Event)     { e.Result = event.OutOfMemory }
func stack(s uint64) opt        { return func(e *event.Event) { e.Stack = s } }
func name(h, parent uint64) opt { return func(e *event.Event) { e.Handle, e.Part = h, parent } }
func count(n uint64) opt        { return func(e *event.Event) { e.Size = n } }
func number(n uint64) opt       { return func(e *event.Event) { e.Addr = n } }

func makeClient(t, name, descriptor uint64, options ...opt) *event.Event {
	return ev(t, event.OpClient, append(options, func(e *event.Event) { e.Handle, e.Addr = name, descriptor })...)
}

func makeDevice(t, h, instance uint64, options ...opt) *event.Event {
	return ev(t, event.OpObjectDevice, append(options, name(h, clientOf(h)), number(instance))...)
}

func tellGPU(t, instance, gpu uint64, options ...opt) *event.Event {
	return ev(t, event.OpGPU, append(options, func(e *event.Event) { e.Addr, e.Part = instance, gpu })...)
}

// memory is below the device of its client.
func makeMemory(t, h, size uint64, options ...opt) *event.Event {
	below := clientOf(h)>>32<<32 | 0x5c000002
	return ev(t, event.OpObjectMemory, append([]opt{in(inRetain), name(h, below), func(e *event.Event) { e.Size = size }}, options...)...)
}

func makeShare(t, h, source uint64, options ...opt) *event.Event {
	return ev(t, event.OpObjectShare, append([]opt{in(inLoad), name(h, clientOf(h)>>32<<32|0x5c000002), number(source)}, options...)...)
}

// makeExport puts memory into a place of a file, and makeImport takes it out.
func makeExport(t, place, source uint64, options ...opt) *event.Event {
	return ev(t, event.OpObjectExport, append([]opt{name(place, 0), number(source), count(1)}, options...)...)
}

func makeImport(t, h, place uint64, options ...opt) *event.Event {
	return ev(t, event.OpObjectImport, append([]opt{in(inLoad), name(h, clientOf(h)>>32<<32|0x5c000002), number(place), count(1)}, options...)...)
}

func end(t, h uint64, options ...opt) *event.Event {
	return ev(t, event.OpObjectFree, append([]opt{in(inFree), name(h, 0)}, options...)...)
}

// begun are the calls before memory, of each of the three clients.
func begun(name, gpu uint64, p event.Process) []*event.Event {
	return []*event.Event{tellGPU(1, 0, gpu, of(p)), makeClient(2, name, 5, of(p)), makeDevice(3, name>>32<<32|0x5c000002, 0, of(p))}
}

func apply(l *Ledger, events ...*event.Event) {
	for _, e := range events {
		l.Apply(e, functions[e.Outer])
	}
}

// run returns a Ledger after calls of proc that follow those of begun.
func run(events ...*event.Event) *Ledger {
	l := New(ledger.Options{})
	apply(l, begun(client, 6, proc)...)
	apply(l, events...)
	return l
}

// total is what a process holds on all GPUs; Held and Rows must agree on each.
func total(l *Ledger, p event.Process) (sum int64) {
	byRow := map[int32]int64{}
	for h := range l.Rows.UseByDevice(p) {
		byRow[h.Device] = h.Bytes
	}
	for i, bytes := range l.BytesByGPU(p) {
		if byRow[int32(i)] != bytes {
			panic("Held and Rows differ")
		}
	}
	for _, bytes := range byRow {
		sum += bytes
	}
	return sum
}

func lossOf(l *Ledger, name string) uint64 {
	for _, c := range l.Loss() {
		if c.Name == name {
			return c.Value
		}
	}
	panic("no loss named " + name)
}

// allocation is one of the program's.
func allocation(t, addr uint64, options ...opt) *event.Event {
	return ev(t, event.OpAlloc, append([]opt{number(addr)}, options...)...)
}
