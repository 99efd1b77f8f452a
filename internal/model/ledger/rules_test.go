package ledger

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

var proc = event.Process{PID: 7, Start: 70}

// ev makes an event of proc at time t; options set the rest.
func ev(t uint64, op event.Op, options ...func(*event.Event)) *event.Event {
	e := &event.Event{Time: t, Proc: proc, Op: op, Stack: 1, Device: 0, Kind: event.KindDevice}
	for _, o := range options {
		o(e)
	}
	return e
}

type opt = func(*event.Event)

func at(addr, size uint64) opt   { return func(e *event.Event) { e.Addr, e.Size = addr, size } }
func handle(h uint64) opt        { return func(e *event.Event) { e.Handle = h } }
func size(n uint64) opt          { return func(e *event.Event) { e.Size = n } }
func kind(k event.Kind) opt      { return func(e *event.Event) { e.Kind = k } }
func space(s event.Space) opt    { return func(e *event.Event) { e.Space = s } }
func result(r int32) opt         { return func(e *event.Event) { e.Result = r } }
func ctx(c uint64) opt           { return func(e *event.Event) { e.Ctx = c } }
func device(d int32) opt         { return func(e *event.Event) { e.Device = d } }
func stack(s uint64) opt         { return func(e *event.Event) { e.Stack = s } }
func stream(s uint64) opt        { return func(e *event.Event) { e.Stream = s } }
func tid(t uint32) opt           { return func(e *event.Event) { e.TID = t } }
func partOf(a, n uint64) opt     { return func(e *event.Event) { e.Addr, e.Part = a, n } }
func of(p event.Process) opt     { return func(e *event.Event) { e.Proc = p } }
func forked(p event.Process) opt { return func(e *event.Event) { e.Child = p } }

const (
	alloc   = event.OpAlloc
	free    = event.OpFree
	create  = event.OpHandleCreate
	retain  = event.OpHandleRetain
	imp     = event.OpHandleImport
	release = event.OpHandleRelease
	mapped  = event.OpMap
	unmap   = event.OpUnmap
	begin   = event.OpCaptureBegin
	end     = event.OpCaptureEnd
	destroy = event.OpGraphDestroy
)

var vmm, imported, async, node = kind(event.KindVMM), kind(event.KindImported), kind(event.KindAsync), kind(event.KindGraph)

// TestRules has a row for each accounting rule.
func TestRules(t *testing.T) {
	child := event.Process{PID: 8, Start: 80}
	tests := []struct {
		name   string
		events []*event.Event
		want   ProcessTotals // of proc
		loss   map[string]uint64
	}{
		{"an allocation is in use until its free",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, alloc, at(32, 10)), ev(3, free, at(16, 0))},
			ProcessTotals{Inuse: 10, Peak: 110, Allocated: 110, LiveObjects: 1}, nil},
		{"a failed call is no memory",
			[]*event.Event{ev(1, alloc, at(16, 100), result(2)), ev(2, alloc, at(16, 9), result(1)), ev(3, create, handle(1), size(5), result(801)), ev(4, imp, result(1))},
			ProcessTotals{Failed: 4, OutOfMemory: 1}, nil},
		{"a failed free ends nothing",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, free, at(16, 0), result(1))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, nil},
		{"a free of address 0 means nothing", []*event.Event{ev(1, free)}, ProcessTotals{}, nil},
		{"a free of an address never allocated is from before the trace",
			[]*event.Event{ev(1, free, at(16, 0))}, ProcessTotals{UnmatchedFrees: 1}, nil},
		{"memory of a pool on the host is the host's",
			[]*event.Event{ev(1, event.OpPoolCreate, handle(7), device(-1), kind(event.KindAsyncHost)), ev(2, alloc, at(16, 100), async, handle(7))},
			ProcessTotals{Host: 100, LiveObjects: 1}, nil},
		{"memory of a managed pool is managed",
			[]*event.Event{ev(1, event.OpPoolCreate, handle(7), device(-1), kind(event.KindAsyncManaged)), ev(2, alloc, at(16, 100), async, handle(7)), ev(3, alloc, at(48, 1), async, handle(7)), ev(4, free, at(48, 0))},
			ProcessTotals{Managed: 100, LiveObjects: 1}, nil},
		{"a device's default pool by its handle and by handle 0 are one",
			[]*event.Event{ev(1, alloc, at(16, 100), async, device(1)), ev(2, event.OpPoolCreate, handle(7), device(1), kind(event.KindNone), partOf(0, event.PoolDefault)),
				ev(3, alloc, at(48, 10), async, handle(7)), ev(4, free, at(16, 0)), ev(5, free, at(48, 0)), ev(6, event.OpPoolTrim, handle(7), size(0))},
			ProcessTotals{Peak: 110, Allocated: 110}, nil},
		{"plain allocations come from the pool that was set",
			[]*event.Event{ev(1, event.OpPoolCreate, handle(7), device(1), kind(event.KindNone)), ev(2, event.OpPoolCreate, handle(7), device(1), kind(event.KindNone), partOf(0, event.PoolCurrent)),
				ev(3, alloc, at(16, 100), async, device(1)), ev(4, alloc, at(48, 10), async, device(0)), ev(5, event.OpPoolDestroy, handle(7)), ev(6, free, at(16, 0)), ev(7, free, at(48, 0))},
			ProcessTotals{Peak: 110, Allocated: 110, AsyncHigh: 10}, nil},
		{"an allocation on a live address retires the old one",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, alloc, at(16, 10))},
			ProcessTotals{Inuse: 10, Peak: 100, Allocated: 110, LiveObjects: 1},
			map[string]uint64{"allocations_replaced": 1}},
		{"a free older than the allocation it would hit is stale",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(5, alloc, at(16, 10)), ev(4, free, at(16, 0))},
			ProcessTotals{Inuse: 10, Peak: 100, Allocated: 110, LiveObjects: 1},
			map[string]uint64{"allocations_replaced": 1, "frees_stale": 1}},
		{"at one time the order of arrival decides",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(1, alloc, at(16, 10)), ev(1, alloc, at(32, 1)), ev(1, free, at(32, 0))},
			ProcessTotals{Inuse: 10, Peak: 100, Allocated: 111, LiveObjects: 1},
			map[string]uint64{"allocations_replaced": 1}},
		{"an allocation overtaken by its successor does not retire it",
			[]*event.Event{ev(5, alloc, at(16, 10)), ev(1, alloc, at(16, 100)), ev(4, free, at(16, 0))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 110, LiveObjects: 1},
			map[string]uint64{"allocations_replaced": 1, "frees_stale": 1}},
		{"one address in two spaces is two allocations",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, alloc, at(16, 7), space(event.SpaceRegistered), kind(event.KindRegistered)), ev(3, free, at(16, 0))},
			ProcessTotals{Peak: 100, Allocated: 100, Host: 7, LiveObjects: 1}, nil},
		{"one address in two processes is two allocations",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, alloc, at(16, 7), of(child)), ev(3, free, at(16, 0), of(child))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, nil},
		{"fork copies nothing, and the child frees nothing of its parent's",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, event.OpFork, forked(child)), ev(3, free, at(16, 0), of(child)), ev(4, event.OpExit, of(child))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, nil},
		{"memory that was opened twice ends when it was closed twice",
			[]*event.Event{ev(1, event.OpOpen, at(16, 0), imported), ev(2, event.OpOpen, at(16, 0), imported), ev(3, event.OpOpen, at(32, 0), imported), ev(4, free, at(16, 0))},
			ProcessTotals{LiveObjects: 2}, nil},
		{"memory that was opened twice and closed twice is gone",
			[]*event.Event{ev(1, event.OpOpen, at(16, 0), imported), ev(2, event.OpOpen, at(16, 0), imported), ev(3, free, at(16, 0)), ev(4, free, at(16, 0)), ev(5, free, at(16, 0))},
			ProcessTotals{UnmatchedFrees: 1}, nil},
		{"opened memory ends with its context, however often it was opened",
			[]*event.Event{ev(1, event.OpOpen, at(16, 0), imported, ctx(1)), ev(2, event.OpOpen, at(16, 0), imported, ctx(1)), ev(3, event.OpContextDestroy, ctx(1)), ev(4, event.OpOpen, at(16, 0), imported, ctx(1)), ev(5, free, at(16, 0))},
			ProcessTotals{}, nil},
		{"a close between two opens that arrived the wrong way round is of the first",
			[]*event.Event{ev(3, event.OpOpen, at(16, 0), imported), ev(1, event.OpOpen, at(16, 0), imported), ev(2, free, at(16, 0))},
			ProcessTotals{LiveObjects: 1}, nil},
		{"classes are kept apart",
			[]*event.Event{ev(1, alloc, at(16, 1), kind(event.KindManaged)), ev(2, alloc, at(32, 2), kind(event.KindHost)), ev(3, alloc, at(48, 4), imported), ev(4, alloc, at(64, 8), kind(event.KindGraph)), ev(5, alloc, at(80, 16), kind(event.KindArray))},
			ProcessTotals{Inuse: 16, Peak: 16, Allocated: 16, Managed: 1, Host: 2, Imported: 4, Graph: 8, LiveObjects: 5}, nil},

		{"exec ends what the old image held",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, create, vmm, handle(1), size(10)), ev(3, mapped, handle(1), at(4096, 10)), ev(9, event.OpExec), ev(10, release, handle(1))},
			ProcessTotals{Peak: 110, Allocated: 110}, map[string]uint64{"handles_unmatched": 1}},
		{"what comes late from before an exec was allocated and at once freed",
			[]*event.Event{ev(9, event.OpExec), ev(8, alloc, at(16, 100)), ev(8, free, at(16, 0)), ev(10, alloc, at(32, 1))},
			ProcessTotals{Inuse: 1, Peak: 1, Allocated: 101, LiveObjects: 1}, map[string]uint64{"events_late": 1}},
		{"what overtook an exec is the new image's",
			[]*event.Event{ev(10, alloc, at(16, 100)), ev(9, event.OpExec)},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, nil},
		{"what comes after the end of a process changes nothing of what it held",
			[]*event.Event{ev(1, alloc, at(16, 100), ctx(1)), ev(2, create, vmm, handle(1), size(10)), ev(5, event.OpExit), ev(6, free, at(16, 0)), ev(7, event.OpContextDestroy, ctx(1)), ev(8, release, handle(1)), ev(9, event.OpPrimaryReset), ev(10, alloc, at(32, 1000))},
			ProcessTotals{Exited: true, Inuse: 110, Peak: 110, Allocated: 1110, LiveObjects: 2}, nil},
		{"a killed process held what it held at its end, and stragglers count",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, alloc, at(32, 10)), ev(5, event.OpExit), ev(4, free, at(32, 0)), ev(6, free, at(16, 0))},
			ProcessTotals{Exited: true, Inuse: 100, Peak: 110, Allocated: 110, LiveObjects: 1}, nil},

		{"physical memory lives by its mapping after its release",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, release, handle(1))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, nil},
		{"physical memory lives by its reference after its unmap",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, unmap, at(4096, 10))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, nil},
		{"physical memory dies when both are gone",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, release, handle(1)), ev(4, unmap, at(4096, 10))},
			ProcessTotals{Peak: 10, Allocated: 10}, nil},
		{"retain and import are references of a live handle",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, retain, handle(1)), ev(3, imp, imported, handle(1)), ev(4, release, handle(1)), ev(5, release, handle(1))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, nil},
		{"one unmap ends many mappings",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, create, vmm, handle(2), size(10)), ev(3, mapped, handle(1), at(4096, 4096)), ev(4, mapped, handle(2), at(8192, 4096)), ev(5, release, handle(1)), ev(6, release, handle(2)), ev(7, unmap, at(4096, 8192))},
			ProcessTotals{Peak: 20, Allocated: 20}, nil},
		{"one handle may have many mappings",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, mapped, handle(1), at(8192, 10)), ev(4, release, handle(1)), ev(5, unmap, at(4096, 10))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, nil},
		{"an unmap of a part of a mapping ends nothing",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, release, handle(1)), ev(4, unmap, at(4096, 5)), ev(5, unmap, at(4100, 50))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, map[string]uint64{"unmaps_partial": 2}},
		{"an unmap older than the mapping is stale",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(5, mapped, handle(1), at(4096, 10)), ev(6, release, handle(1)), ev(4, unmap, at(4096, 10))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, map[string]uint64{"frees_stale": 1}},
		{"a mapping over a mapping retires it",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, release, handle(1)), ev(4, create, vmm, handle(2), size(7)), ev(5, mapped, handle(2), at(4100, 10))},
			ProcessTotals{Inuse: 7, Peak: 17, Allocated: 17, LiveObjects: 1}, map[string]uint64{"allocations_replaced": 1}},
		{"at one time the mapping that arrives later stays",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(1, create, vmm, handle(2), size(7)), ev(2, mapped, handle(1), at(4096, 10)), ev(2, mapped, handle(2), at(4096, 10)), ev(3, release, handle(1)), ev(3, release, handle(2))},
			ProcessTotals{Inuse: 7, Peak: 17, Allocated: 17, LiveObjects: 1}, map[string]uint64{"allocations_replaced": 1}},
		{"a create that returns a live handle retires it",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, create, vmm, handle(1), size(7)), ev(4, unmap, at(4096, 10))},
			ProcessTotals{Inuse: 7, Peak: 10, Allocated: 17, LiveObjects: 1}, map[string]uint64{"allocations_replaced": 1}},
		{"a release too many ends nothing",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, release, handle(1)), ev(4, release, handle(1))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, map[string]uint64{"releases_excess": 1}},
		{"an import is not owned, and its first mapping tells its size",
			[]*event.Event{ev(1, imp, imported, handle(1)), ev(2, mapped, handle(1), at(4096, 10)), ev(3, mapped, handle(1), at(8192, 10))},
			ProcessTotals{Imported: 10, LiveObjects: 1}, nil},
		{"a multicast object shows memory that counts where it was created",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, create, kind(event.KindMulticast), handle(2)), ev(3, mapped, handle(2), at(4096, 10)), ev(4, release, handle(2))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 2}, nil},
		{"a multicast object ends with its references and mappings",
			[]*event.Event{ev(1, create, kind(event.KindMulticast), handle(2)), ev(2, mapped, handle(2), at(4096, 10)), ev(3, release, handle(2)), ev(4, unmap, at(4096, 10))},
			ProcessTotals{}, nil},
		{"physical memory on the host is host memory",
			[]*event.Event{ev(1, create, kind(event.KindVMMHost), handle(1), size(10))},
			ProcessTotals{Host: 10, LiveObjects: 1}, nil},
		{"mappings of a handle never seen created are no memory, and end as others",
			[]*event.Event{ev(1, mapped, handle(9), at(4096, 10)), ev(2, mapped, handle(9), at(8192, 5)), ev(3, unmap, at(4096, 10)), ev(4, release, handle(9)), ev(5, unmap, at(1<<20, 1))},
			ProcessTotals{}, map[string]uint64{"handles_unmatched": 3, "unmaps_unmatched": 1}},
		{"a part of a sparse array is a mapping",
			[]*event.Event{ev(1, create, vmm, handle(1), size(10)), ev(2, event.OpMapArray, handle(1), partOf(64, 3)), ev(3, release, handle(1)), ev(4, event.OpUnmapArray, partOf(64, 2)), ev(5, event.OpMapArray, handle(1), partOf(64, 4)), ev(6, event.OpUnmapArray, partOf(64, 3))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1}, map[string]uint64{"unmaps_unmatched": 1}},
		{"the parts of an array end with it",
			[]*event.Event{ev(1, alloc, at(64, 1), space(event.SpaceArray), kind(event.KindArray)), ev(2, create, vmm, handle(1), size(10)), ev(3, event.OpMapArray, handle(1), partOf(64, 3)), ev(4, release, handle(1)), ev(5, free, at(64, 0), space(event.SpaceArray))},
			ProcessTotals{Peak: 11, Allocated: 11}, nil},
		{"address space is not memory",
			[]*event.Event{ev(1, event.OpReserve, at(4096, 1<<40)), ev(2, event.OpReserve, at(1<<41, 4096)), ev(3, event.OpUnreserve, at(4096, 1<<40))},
			ProcessTotals{}, nil},

		{"a context's end ends its allocations",
			[]*event.Event{ev(1, alloc, at(16, 100), ctx(1)), ev(2, alloc, at(32, 10), ctx(2)), ev(3, alloc, at(48, 1)), ev(4, event.OpContextDestroy, ctx(1)), ev(5, event.OpContextDestroy, ctx(1))},
			ProcessTotals{Inuse: 11, Peak: 111, Allocated: 111, LiveObjects: 2}, map[string]uint64{"context_owner_unknown": 2}},
		{"a context that was attached to ends with the last detach",
			[]*event.Event{ev(1, event.OpContextCreate, ctx(1)), ev(2, event.OpContextSeen, ctx(1), partOf(0, event.ContextAttached)), ev(3, alloc, at(16, 100), ctx(1)),
				ev(4, event.OpContextDestroy, ctx(1), partOf(0, event.ContextDetached)), ev(5, alloc, at(32, 10), ctx(1)), ev(6, event.OpContextDestroy, ctx(1), partOf(0, event.ContextDetached))},
			ProcessTotals{Peak: 110, Allocated: 110}, nil},
		{"a detach of an older context may not be the last",
			[]*event.Event{ev(1, alloc, at(16, 100), ctx(1)), ev(2, event.OpContextDestroy, ctx(1), partOf(0, event.ContextDetached))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, nil},
		{"a green context is no older one, and its memory ends with the primary one",
			[]*event.Event{ev(1, event.OpContextSeen, ctx(1)), ev(2, event.OpContextSeen, ctx(9), partOf(0, event.ContextGreen)), ev(3, alloc, at(16, 100), ctx(9)), ev(4, alloc, at(32, 10)),
				ev(5, event.OpContextDestroy, ctx(1)), ev(6, event.OpPrimaryReset)},
			ProcessTotals{Peak: 110, Allocated: 110}, nil},
		{"a call that fails in an ended context does not bring it back",
			[]*event.Event{ev(1, event.OpContextSeen, ctx(1)), ev(2, event.OpContextCreate, ctx(2)), ev(3, event.OpContextDestroy, ctx(2)), ev(4, alloc, at(16, 100), ctx(2), result(event.ContextDestroyed)),
				ev(5, alloc, at(32, 10)), ev(6, event.OpContextDestroy, ctx(1))},
			ProcessTotals{Peak: 10, Allocated: 10, Failed: 1}, nil},
		{"an allocation of no known context is the only context's",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, event.OpContextSeen, ctx(1)), ev(3, event.OpContextDestroy, ctx(1))},
			ProcessTotals{Peak: 100, Allocated: 100}, nil},
		{"an allocation of no known context is none of a context created since",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, event.OpContextCreate, ctx(1)), ev(3, alloc, at(32, 10), ctx(1)), ev(4, event.OpContextDestroy, ctx(1))},
			ProcessTotals{Inuse: 100, Peak: 110, Allocated: 110, LiveObjects: 1}, nil},
		{"an allocation of no known context is the only old context's, whatever was created since",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, event.OpContextCreate, ctx(1)), ev(3, event.OpContextDestroy, ctx(2))},
			ProcessTotals{Peak: 100, Allocated: 100}, nil},
		{"an allocation of no known context is kept when one of several old ones ends",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, event.OpContextSeen, ctx(1)), ev(3, event.OpContextSeen, ctx(2)), ev(4, event.OpContextDestroy, ctx(1)), ev(5, event.OpContextDestroy, ctx(2))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, map[string]uint64{"context_owner_unknown": 2}},
		{"a created context's handle that was an old one's is no old context",
			[]*event.Event{ev(1, alloc, at(16, 100)), ev(2, event.OpContextSeen, ctx(1)), ev(3, event.OpContextSeen, ctx(2)), ev(4, event.OpContextDestroy, ctx(1)), ev(5, event.OpContextCreate, ctx(1)), ev(6, event.OpContextDestroy, ctx(1))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, map[string]uint64{"context_owner_unknown": 1}},
		{"a context that is created under a live one's handle ends what that one held",
			[]*event.Event{ev(1, alloc, at(16, 100), ctx(1)), ev(3, alloc, at(32, 10), ctx(1)), ev(2, event.OpContextCreate, ctx(1))},
			ProcessTotals{Inuse: 10, Peak: 110, Allocated: 110, LiveObjects: 1}, map[string]uint64{"allocations_replaced": 1}},
		{"the end of an earlier context of the handle ends nothing of the newer one",
			[]*event.Event{ev(3, event.OpContextCreate, ctx(1)), ev(4, alloc, at(16, 100), ctx(1)), ev(2, event.OpContextDestroy, ctx(1)), ev(5, event.OpContextDestroy, ctx(1))},
			ProcessTotals{Peak: 100, Allocated: 100}, nil},
		{"an exec forgets the contexts of before",
			[]*event.Event{ev(1, event.OpContextSeen, ctx(1)), ev(2, event.OpContextSeen, ctx(2)), ev(3, event.OpExec), ev(4, alloc, at(16, 100)), ev(5, event.OpContextDestroy, ctx(3))},
			ProcessTotals{Peak: 100, Allocated: 100}, nil},
		{"a reset ends nothing of a context that was created, which is no primary one",
			[]*event.Event{ev(1, event.OpContextCreate, ctx(1)), ev(2, alloc, at(16, 100), ctx(1)), ev(3, alloc, at(32, 10)), ev(4, event.OpPrimaryReset)},
			ProcessTotals{Inuse: 100, Peak: 110, Allocated: 110, LiveObjects: 1}, nil},
		{"a reset keeps what is on a device that is not known",
			[]*event.Event{ev(1, alloc, at(16, 100), device(-1)), ev(2, event.OpContextCreate, ctx(1)), ev(3, event.OpPrimaryReset)},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, map[string]uint64{"context_owner_unknown": 1}},
		{"an allocation newer than the context's end stays",
			[]*event.Event{ev(5, alloc, at(16, 100), ctx(1)), ev(4, event.OpContextDestroy, ctx(1))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, nil},
		{"pools, physical memory and graphs outlive a context",
			[]*event.Event{ev(1, alloc, at(16, 100), ctx(1), async), ev(2, create, vmm, handle(1), size(10), ctx(1)), ev(3, alloc, at(32, 5), ctx(1), kind(event.KindGraph)), ev(4, event.OpContextDestroy, ctx(1)), ev(5, event.OpPrimaryReset)},
			ProcessTotals{Inuse: 110, Peak: 110, Allocated: 110, Graph: 5, LiveObjects: 3, AsyncInuse: 100, AsyncHigh: 100}, nil},
		{"a reset ends what is in the device's contexts, and host memory with it",
			[]*event.Event{ev(1, event.OpContextSeen, ctx(1), device(0)), ev(2, event.OpContextSeen, ctx(2), device(1)), ev(3, alloc, at(16, 100), ctx(1), device(-1)), ev(4, alloc, at(32, 10), ctx(2), device(-1)), ev(5, alloc, at(48, 7), ctx(1), device(-1), kind(event.KindHost)), ev(6, alloc, at(64, 1), device(0)), ev(7, event.OpPrimaryReset, device(0)), ev(8, event.OpPrimaryReset, device(-1))},
			ProcessTotals{Inuse: 10, Peak: 111, Allocated: 111, LiveObjects: 1}, map[string]uint64{"resets_unknown": 1}},
		{"a release of the primary context ends nothing by itself",
			[]*event.Event{ev(1, alloc, at(16, 100), ctx(1)), ev(2, event.OpPrimaryRelease, ctx(1))},
			ProcessTotals{Inuse: 100, Peak: 100, Allocated: 100, LiveObjects: 1}, nil},

		{"a graph that never ran ends with its ranges, and no other's",
			[]*event.Event{ev(1, alloc, at(16, 100), node, handle(1)), ev(2, alloc, at(32, 10), node, handle(2)), ev(3, alloc, at(48, 1), async), ev(4, destroy, handle(1)), ev(5, destroy, handle(1))},
			ProcessTotals{Graph: 10, Inuse: 1, Peak: 1, Allocated: 1, LiveObjects: 2, AsyncInuse: 1, AsyncHigh: 1}, nil},
		{"what a run of a destroyed graph may have left is kept until it is freed",
			[]*event.Event{ev(1, alloc, at(16, 100), node, handle(1)), ev(2, alloc, at(32, 10), node, handle(1)), ev(3, free, at(32, 0)), ev(4, event.OpGraphInstantiate, handle(1)), ev(5, destroy, handle(1))},
			ProcessTotals{Graph: 100, LiveObjects: 1}, map[string]uint64{"graph_memory_kept": 1}},
		{"the new graph of a destroyed one's handle has its own ranges",
			[]*event.Event{ev(1, alloc, at(16, 100), node, handle(1)), ev(2, event.OpGraphInstantiate, handle(1)), ev(3, destroy, handle(1)), ev(4, alloc, at(32, 10), node, handle(1)), ev(5, destroy, handle(1)), ev(6, free, at(16, 0))},
			ProcessTotals{}, map[string]uint64{"graph_memory_kept": 1}},
		{"a child graph that was given away ends with its new parent",
			[]*event.Event{ev(1, alloc, at(16, 100), node, handle(1)), ev(2, alloc, at(32, 10), node, handle(2)), ev(3, event.OpGraphMove, handle(2), partOf(0, 1)), ev(4, destroy, handle(2))},
			ProcessTotals{}, nil},
		{"what a captured stream allocates is a graph's, and no memory in use",
			[]*event.Event{ev(1, alloc, at(16, 100), async, stream(7)), ev(2, begin, stream(7)), ev(3, alloc, at(32, 10), async, stream(7)), ev(4, end, stream(7), handle(1)), ev(5, alloc, at(48, 1), async, stream(7))},
			ProcessTotals{Inuse: 101, Peak: 101, Allocated: 101, Graph: 10, LiveObjects: 3, AsyncInuse: 101, AsyncHigh: 101}, nil},
		{"a captured graph ends as any other",
			[]*event.Event{ev(1, begin, stream(7)), ev(2, alloc, at(32, 10), async, stream(7)), ev(3, alloc, at(48, 10), async, stream(7)), ev(4, free, at(48, 0)), ev(5, end, stream(7), handle(1)), ev(6, destroy, handle(1))},
			ProcessTotals{}, nil},
		{"a capture into a graph adds to it",
			[]*event.Event{ev(1, alloc, at(16, 100), node, handle(1)), ev(2, begin, stream(7), handle(1)), ev(3, alloc, at(32, 10), async, stream(7)), ev(4, end, stream(7), handle(1)), ev(5, destroy, handle(1))},
			ProcessTotals{}, nil},
		{"an invalidated capture makes no graph",
			[]*event.Event{ev(1, begin, stream(7)), ev(2, alloc, at(32, 10), async, stream(7)), ev(3, end, stream(7), result(901)), ev(4, alloc, at(48, 1), async, stream(7))},
			ProcessTotals{Inuse: 1, Peak: 1, Allocated: 1, LiveObjects: 1, AsyncInuse: 1, AsyncHigh: 1}, nil},
		{"a capture goes on when another thread fails to end it",
			[]*event.Event{ev(1, begin, stream(7)), ev(2, end, stream(7), result(908)), ev(3, alloc, at(32, 10), async, stream(7))},
			ProcessTotals{Graph: 10, LiveObjects: 1}, nil},
		{"what the capturing thread allocates on another stream is the graph's, and counted",
			[]*event.Event{ev(1, begin, stream(7), tid(1)), ev(2, alloc, at(32, 10), async, stream(8), tid(1)), ev(3, end, stream(7), handle(1))},
			ProcessTotals{Graph: 10, LiveObjects: 1}, map[string]uint64{"allocations_during_capture": 1}},
		{"what another thread allocates on another stream is memory, and counted",
			[]*event.Event{ev(1, begin, stream(7), tid(1)), ev(2, alloc, at(32, 10), async, stream(8), tid(2)), ev(3, end, stream(7), handle(1))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, LiveObjects: 1, AsyncInuse: 10, AsyncHigh: 10}, map[string]uint64{"allocations_during_capture": 1}},
		{"each thread's own stream is another one",
			[]*event.Event{ev(1, begin, stream(2), tid(1)), ev(2, alloc, at(16, 1), async, stream(2), tid(1)), ev(3, alloc, at(32, 10), async, stream(2), tid(2)), ev(4, end, stream(2), tid(2), handle(1))},
			ProcessTotals{Inuse: 10, Peak: 10, Allocated: 10, Graph: 1, LiveObjects: 2, AsyncInuse: 10, AsyncHigh: 10},
			map[string]uint64{"allocations_during_capture": 1, "captures_unmatched": 1}},
		{"the end of a capture that began before the trace",
			[]*event.Event{ev(1, alloc, at(16, 1), async, stream(7)), ev(2, end, stream(7), handle(1))},
			ProcessTotals{Inuse: 1, Peak: 1, Allocated: 1, LiveObjects: 1, AsyncInuse: 1, AsyncHigh: 1}, map[string]uint64{"captures_unmatched": 1}},

		{"in use and the pool's highest use are two numbers",
			[]*event.Event{ev(1, alloc, at(16, 100), async), ev(2, alloc, at(32, 50), async), ev(3, free, at(16, 0))},
			ProcessTotals{Inuse: 50, Peak: 150, Allocated: 150, LiveObjects: 1, AsyncInuse: 50, AsyncHigh: 150}, nil},
		{"a trim gives back what is above both in use and what it keeps",
			[]*event.Event{ev(1, alloc, at(16, 100), async), ev(2, alloc, at(32, 50), async), ev(3, free, at(16, 0)), ev(4, event.OpPoolTrim, handle(77), size(60))},
			ProcessTotals{Inuse: 50, Peak: 150, Allocated: 150, LiveObjects: 1, AsyncInuse: 50, AsyncHigh: 60}, nil},
		{"a destroyed pool's allocations live until freed",
			[]*event.Event{ev(1, event.OpPoolCreate, handle(5)), ev(2, alloc, at(16, 100), async, handle(5)), ev(3, alloc, at(32, 50), async, handle(5)), ev(4, event.OpPoolDestroy, handle(5)), ev(5, free, at(16, 0))},
			ProcessTotals{Inuse: 50, Peak: 150, Allocated: 150, LiveObjects: 1, AsyncInuse: 50, AsyncHigh: 50}, nil},
		{"an allocation whose address could not be read has no known end",
			[]*event.Event{ev(1, alloc, at(0, 100)), ev(2, free, at(16, 0)), ev(3, free, at(32, 0))},
			ProcessTotals{Allocated: 100, UnknownBytes: 100, UnmatchedFrees: 1}, map[string]uint64{"allocations_without_address": 1}},
		{"an allocation of nothing is nothing, and hides no free",
			[]*event.Event{ev(1, alloc), ev(2, free, at(16, 0))},
			ProcessTotals{UnmatchedFrees: 1}, nil},
		{"what no call can cause is ignored",
			[]*event.Event{ev(1, alloc, at(16, 1<<60)), ev(2, 200), ev(3, alloc, kind(99)), ev(4, alloc, space(99)), ev(5, mapped, at(^uint64(0), 4096)), ev(6, unmap, at(4096, 0)), ev(7, event.OpNone), ev(8, alloc, at(^uint64(0), 4096))},
			ProcessTotals{}, map[string]uint64{"events_invalid": 8}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, m := New(Options{}), newModel()
			for _, e := range tt.events {
				l.Apply(e)
				m.apply(e)
			}
			compare(t, l, m, tt.name) // the model must agree with the rules too
			got := ProcessTotals{}
			for p := range l.Processes {
				if p.Proc == proc {
					got = p
					got.Proc = event.Process{}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("totals differ (-want +got):\n%s", diff)
			}
			loss := map[string]uint64{}
			for _, c := range l.Loss() {
				if c.Value != 0 {
					loss[c.Name] = c.Value
				}
			}
			if tt.loss == nil {
				tt.loss = map[string]uint64{}
			}
			if diff := cmp.Diff(tt.loss, loss); diff != "" {
				t.Errorf("loss differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPeakBySite: each site's share is of the moment of the highest total,
// not its own highest.
func TestPeakBySite(t *testing.T) {
	l := New(Options{})
	for _, e := range []*event.Event{
		ev(1, alloc, at(16, 50), stack(1)), ev(2, free, at(16, 0)),
		ev(3, alloc, at(16, 30), stack(1)), ev(4, alloc, at(32, 30), stack(2)), // the peak: 60
		ev(5, free, at(32, 0)), ev(6, alloc, at(48, 25), stack(3)), ev(7, free, at(16, 0)),
		ev(8, alloc, at(64, 35), stack(4)), ev(9, free, at(64, 0)), // 60 again: not a new peak
	} {
		l.Apply(e)
	}
	got := map[uint64][2]int64{}
	for s := range l.Sites {
		got[s.Stack] = [2]int64{s.PeakBytes, s.InuseBytes}
	}
	want := map[uint64][2]int64{1: {30, 0}, 2: {30, 0}, 3: {0, 25}, 4: {0, 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("peak and in use by stack differ (-want +got):\n%s", diff)
	}
}

// TestLateDevice: sites learn their device when their context's is seen, and
// a handle used again does not change what it meant before.
func TestLateDevice(t *testing.T) {
	l := New(Options{})
	for _, e := range []*event.Event{
		ev(1, alloc, at(16, 1), ctx(5), device(-1)),
		ev(2, event.OpContextSeen, ctx(5), device(3)),
		ev(3, alloc, at(32, 2), ctx(5), device(-1)),
		ev(4, event.OpContextDestroy, ctx(5)),
		ev(5, alloc, at(48, 4), ctx(5), device(-1)),
		ev(6, alloc, at(64, 8), ctx(5), device(-1), kind(event.KindHost)),
	} {
		l.Apply(e)
	}
	type where struct {
		Device int32
		Ctx    uint64
	}
	got := map[where]int64{}
	for s := range l.Sites {
		got[where{s.Device, s.Ctx}] += s.AllocBytes
	}
	if diff := cmp.Diff(map[where]int64{{3, 0}: 3, {-1, 5}: 4, {-1, 0}: 8}, got); diff != "" {
		t.Errorf("bytes by device differ (-want +got):\n%s", diff)
	}
	if d := l.DeviceOf(proc, 5); d != event.NoDevice {
		t.Errorf("a destroyed context is on device %d", d)
	}
	l.Apply(ev(7, event.OpContextSeen, ctx(5), device(1)))
	if d := l.DeviceOf(proc, 5); d != 1 {
		t.Errorf("context is on device %d, want 1", d)
	}
}
