package physical

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// TestRules has a row for each rule of what a process holds.
func TestRules(t *testing.T) {
	tests := []struct {
		name   string
		events []*event.Event // after those of begun
		want   int64          // MiB of proc
	}{
		{"memory is held until its end",
			[]*event.Event{makeMemory(4, first, 6*mib), makeMemory(5, second, 2*mib), end(6, first)}, 2},
		{"a call that failed brings nothing", []*event.Event{makeMemory(4, first, 6*mib, failed)}, 0},
		{"an end that failed ends nothing", []*event.Event{makeMemory(4, first, 6*mib), end(5, first, failed)}, 6},
		{"the end of a device takes its memory along",
			[]*event.Event{makeMemory(4, first, 6*mib), makeMemory(5, second, 2*mib), end(6, device)}, 0},
		{"the end of a client takes all along", []*event.Event{makeMemory(4, first, 6*mib), end(6, client)}, 0},
		{"a descriptor takes its clients along",
			[]*event.Event{makeMemory(4, first, 6*mib), ev(5, event.OpDescriptorClose, number(5))}, 0},
		{"another descriptor does not",
			[]*event.Event{makeMemory(4, first, 6*mib), ev(5, event.OpDescriptorClose, number(6))}, 6},
		{"a close that is told late does not end the next client of its descriptor",
			[]*event.Event{end(4, client), makeClient(9, client, 5), makeDevice(9, device, 0), makeMemory(10, first, 6*mib), ev(8, event.OpDescriptorClose, number(5))}, 6},
		{"another process's close does not", []*event.Event{makeMemory(4, first, 6*mib), ev(5, event.OpDescriptorClose, number(5), of(other))}, 6},
		{"a name that is there has ended",
			[]*event.Event{makeMemory(4, first, 6*mib), makeMemory(6, first, 2*mib)}, 2},
		{"an end older than what has the name is of what had it before",
			[]*event.Event{makeMemory(4, first, 6*mib), makeMemory(6, first, 2*mib), end(5, first)}, 2},
		{"memory older than what has its name has ended",
			[]*event.Event{makeMemory(6, first, 2*mib), makeMemory(4, first, 6*mib)}, 2},
		{"memory newer than the end of its device, and there before it, ends",
			[]*event.Event{makeMemory(8, first, 6*mib), end(7, device), end(9, client)}, 0},
		{"memory of a device that ended meanwhile is told later",
			[]*event.Event{end(7, device), makeMemory(8, first, 6*mib)}, 0},
		{"memory older than the device of that name was of the one before",
			[]*event.Event{end(5, device), makeDevice(9, device, 0), makeMemory(8, first, 6*mib)}, 0},
		{"memory below a device made again is held",
			[]*event.Event{end(5, device), makeDevice(9, device, 0), makeMemory(10, first, 6*mib)}, 6},
		{"a client of before the trace takes along what was made in it since",
			[]*event.Event{ev(4, event.OpObjectMemory, name(shared2, device2), func(e *event.Event) { e.Size = 6 * mib }), end(5, client2)}, 0},
		{"so does a device of before the trace",
			[]*event.Event{ev(4, event.OpObjectMemory, name(shared2, device2), func(e *event.Event) { e.Size = 6 * mib }), end(5, device2)}, 0},
		{"memory that is its own parent is its client's",
			[]*event.Event{makeMemory(4, first, 6*mib, name(first, first)), end(5, client)}, 0},
		{"a parent of another client is none",
			[]*event.Event{makeMemory(4, first, 6*mib, name(first, device2)), end(5, client)}, 0},
		{"memory with the name of a client is memory",
			[]*event.Event{makeMemory(4, client2, 6*mib, name(client2, client2)), end(5, client2)}, 0},
		{"more than there can be is not", []*event.Event{makeMemory(4, first, 1<<63), makeMemory(5, second, mib)}, 1},
		{"no bytes are none", []*event.Event{makeMemory(4, first, 0), end(5, first)}, 0},
		{"an exec ends all", []*event.Event{makeMemory(4, first, 6*mib), ev(5, event.OpExec)}, 0},
		{"what is newer than an exec is of the new image",
			[]*event.Event{makeClient(8, client2, 5), makeMemory(9, shared2, 6*mib), ev(5, event.OpExec)}, 6},
		{"what is older than an exec ended with it", []*event.Event{ev(9, event.OpExec), makeMemory(8, first, 6*mib)}, 0},
		{"an exec ends what was made below what was not seen, and is older",
			[]*event.Event{makeMemory(9, shared2, mib), makeMemory(5, shared2+1, 2*mib), ev(7, event.OpExec)}, 1},
		{"an exit leaves what was held", []*event.Event{makeMemory(4, first, 6*mib), ev(5, event.OpExit)}, 6},
		{"what was freed before an exit was not held",
			[]*event.Event{makeMemory(4, first, 6*mib), end(5, first, in(inNone)), ev(6, event.OpExit)}, 0},
		{"a fork copies nothing", []*event.Event{makeMemory(4, first, 6*mib), ev(5, event.OpFork, of(other), func(e *event.Event) { e.Child = proc })}, 6},
		{"the driver's system memory is on no GPU", []*event.Event{makeMemory(4, first, 6*mib, kind(event.KindSystem))}, 0},
		{"nor is what shares it, its owner gone",
			[]*event.Event{makeMemory(4, first, 6*mib, kind(event.KindSystem)), makeShare(5, second, first), end(6, first)}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := total(run(tt.events...), proc); got != tt.want*mib {
				t.Errorf("held %d bytes, want %d MiB", got, tt.want)
			}
		})
	}
}

// A process's memory is by the function that it was handed out in.
func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		function uint16
		kind     event.Kind // of the object
		want     event.Kind
	}{
		{inRetain, event.KindDriver, event.KindContext},
		{inAlloc, event.KindDriver, event.KindBacking},
		{inLaunch, event.KindDriver, event.KindCode},
		{inSync, event.KindDriver, event.KindOther},
		{inNone, event.KindDriver, event.KindDriver},
		{inRetain, event.KindSystem, event.KindSystem},
		{inHost, event.KindSystem, event.KindNone}, // the program's own
	} {
		for _, fails := range []bool{false, true} {
			result := func(e *event.Event) {
				if fails {
					failed(e)
				}
			}
			l, got := run(makeMemory(4, first, mib, in(tt.function), kind(tt.kind), result)), event.KindNone
			for s := range l.Rows.Sites {
				got = s.Kind
			}
			if got != tt.want {
				t.Errorf("%s of %s (failed: %v) is %s, want %s", tt.kind, functions[tt.function], fails, got, tt.want)
			}
		}
	}
}
