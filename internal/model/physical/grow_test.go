package physical

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

type held map[event.Kind]int64 // MiB

func byKind(l *Ledger, p event.Process) held {
	out := held{}
	for s := range l.Rows.Sites {
		if s.Proc == p && s.InuseBytes != 0 {
			out[s.Kind] += s.InuseBytes / mib
		}
	}
	return out
}

// The sizes are those of local memory on an H200 (driver 580): a context's, after
// loading a module, and after a launch that wants more.
func TestGrow(t *testing.T) {
	const had, grew, more = 414 * mib, 550 * mib, 4510 * mib
	arena := makeMemory(10, first, had)
	give := func(t uint64, options ...opt) *event.Event {
		return end(t, first, append([]opt{in(inLoad)}, options...)...)
	}
	get := func(t, size uint64, options ...opt) *event.Event {
		return makeMemory(t, first, size, append([]opt{in(inLoad), stack(2)}, options...)...)
	}
	tests := []struct {
		name   string
		events []*event.Event
		want   held
	}{
		{"what was there stays with its call", []*event.Event{arena, give(11), get(12, grew)},
			held{event.KindContext: 414, event.KindLocal: 136}},
		{"and once more", []*event.Event{arena, give(11), get(12, grew), give(13, in(inLaunch)), get(14, more, in(inLaunch))},
			held{event.KindContext: 414, event.KindLocal: 4096}},
		{"it is not held between the two", []*event.Event{arena, give(11)}, held{}},
		{"the same size again is the same", []*event.Event{arena, give(11), get(12, had)}, held{event.KindContext: 414}},
		{"less is new", []*event.Event{arena, give(11), get(12, mib)}, held{event.KindCode: 1}},
		{"under another name too", []*event.Event{arena, give(11), get(12, grew, name(second, device))},
			held{event.KindContext: 414, event.KindLocal: 136}},
		{"on another device it is new", []*event.Event{arena, give(11), get(12, grew, name(second, device+1))}, held{event.KindCode: 550}},
		{"another thread's is new", []*event.Event{arena, give(11), get(12, grew, on(2))}, held{event.KindCode: 550}},
		{"another function's is new", []*event.Event{arena, give(11), get(12, grew, in(inAlloc))}, held{event.KindBacking: 550}},
		{"what comes much later is new", []*event.Event{arena, give(11), get(patience+12, grew)}, held{event.KindCode: 550}},
		{"what is smaller may come in between", []*event.Event{arena, give(11), makeMemory(12, second, mib, in(inLoad)), get(13, grew)},
			held{event.KindContext: 414, event.KindLocal: 136, event.KindCode: 1}},
		{"what is freed to be freed does not grow", []*event.Event{arena, give(11, in(inFree)), get(12, grew, in(inFree))},
			held{event.KindOther: 550}},
		{"code does not grow", []*event.Event{makeMemory(10, first, had, in(inLoad)), give(11), get(12, grew)}, held{event.KindCode: 550}},
		{"allocations do not grow", []*event.Event{makeMemory(10, first, had, in(inAlloc)), give(11), get(12, grew)}, held{event.KindCode: 550}},
		{"two threads grow at once",
			[]*event.Event{arena, makeMemory(10, second, mib, on(2)), give(11), end(11, second, in(inLaunch), on(2)),
				makeMemory(12, second, 3*mib, in(inLaunch), on(2)), get(13, grew)},
			held{event.KindContext: 415, event.KindLocal: 138}},
		{"of before the trace it is local memory", []*event.Event{end(11, shared2, in(inLaunch)), makeMemory(12, shared2, grew, in(inLaunch))},
			held{event.KindLocal: 550}},
		{"of before the trace under another name it is new", []*event.Event{end(11, shared2, in(inLaunch)), makeMemory(12, shared2+1, grew, in(inLaunch))},
			held{event.KindCode: 550}},
		{"of before the trace and small it is new", []*event.Event{end(11, shared2, in(inLaunch)), makeMemory(12, shared2, 2*mib, in(inLaunch))},
			held{event.KindCode: 2}},
		{"of before the trace in another call it is new", []*event.Event{end(11, shared2, in(inFree)), makeMemory(12, shared2, grew, in(inLaunch))},
			held{event.KindCode: 550}},
		{"of a device that was seen opened it is new", []*event.Event{end(11, first, in(inLaunch)), makeMemory(12, first, grew, in(inLaunch))},
			held{event.KindCode: 550}},
		{"its end ends all of it", []*event.Event{arena, give(11), get(12, grew), end(13, first)}, held{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := run(tt.events...)
			if d := cmp.Diff(tt.want, byKind(l, proc)); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
			total(l, proc)
		})
	}
}

// However often memory grows, few calls have it, and it stays whole.
func TestGrowBound(t *testing.T) {
	l := run(makeMemory(4, first, mib))
	const n = 5000
	for i := range uint64(n) {
		apply(l, end(5+2*i, first, in(inLaunch)), makeMemory(6+2*i, first, (i+2)*mib, in(inLaunch), stack(i)))
	}
	if got := total(l, proc); got != (n+1)*mib {
		t.Errorf("held %d bytes, want %d MiB", got, n+1)
	}
	if got := l.Rows.RowCount(); got > maxRows {
		t.Errorf("%d rows", got)
	}
}
