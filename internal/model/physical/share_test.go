package physical

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// Memory that processes share counts once, with its owner: who made it, then of those
// who share it whom the kernel driver's ring has next.
func TestShare(t *testing.T) {
	third := event.Process{PID: 9, Start: 90}
	owned := makeMemory(4, first, 6*mib)
	b, c := makeShare(5, shared2, first, of(other)), makeShare(6, shared3, first, of(third))
	exit := func(p event.Process) *event.Event { return ev(9, event.OpExit, of(p)) }
	tests := []struct {
		name   string
		events []*event.Event
		want   [3]int64 // MiB of proc, other, third
	}{
		{"with its owner", []*event.Event{owned, b, c}, [3]int64{6}},
		{"not with one who shares it when that lets go", []*event.Event{owned, b, c, end(7, shared2, of(other))}, [3]int64{6}},
		{"with the one who is left", []*event.Event{owned, b, end(7, first)}, [3]int64{0, 6}},
		{"of two, with the one who came last", []*event.Event{owned, b, c, end(7, first)}, [3]int64{0, 0, 6}},
		{"then with the other", []*event.Event{owned, b, c, end(7, first), end(8, shared3, of(third))}, [3]int64{0, 6}},
		{"and with nobody at last", []*event.Event{owned, b, c, end(7, first), end(8, shared3, of(third)), end(9, shared2, of(other))}, [3]int64{}},
		{"a share of a share comes after that",
			[]*event.Event{owned, b, makeShare(6, shared3, shared2, of(third)), end(7, first)}, [3]int64{0, 6}},
		{"an end that began before the owner's still ends it",
			[]*event.Event{owned, b, end(8, first), end(7, shared2, of(other))}, [3]int64{}},
		{"an exit passes it on", []*event.Event{owned, b, exit(proc)}, [3]int64{6, 6}},
		{"an exec passes it on", []*event.Event{owned, b, ev(9, event.OpExec)}, [3]int64{0, 6}},
		{"not to what ends with it", []*event.Event{owned, b, makeShare(7, second, first), ev(9, event.OpExec)}, [3]int64{0, 6}},
		{"a client's end passes it on", []*event.Event{owned, b, makeShare(7, second, first), end(9, client)}, [3]int64{0, 6}},
		{"within a process", []*event.Event{owned, makeShare(5, second, first), end(6, first)}, [3]int64{6}},
		{"what shares itself shares nothing", []*event.Event{owned, makeShare(5, first, first), end(6, first)}, [3]int64{}},
		{"memory of before the trace is nobody's that is known", []*event.Event{makeShare(5, shared2, first, of(other))}, [3]int64{}},
		{"a client that is made again before its end is told keeps its maker",
			[]*event.Event{owned, makeClient(6, client, 9, of(third)), end(5, client), makeMemory(8, first, mib, of(third)),
				makeShare(9, shared2, first, of(other)), end(10, client, of(third))}, [3]int64{0, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := New(ledger.Options{})
			apply(l, begun(client, 6, proc)...)
			apply(l, begun(client2, 6, other)...)
			apply(l, begun(client3, 6, third)...)
			apply(l, tt.events...)
			if d := cmp.Diff(tt.want, [3]int64{total(l, proc) / mib, total(l, other) / mib, total(l, third) / mib}); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
		})
	}
}

// Memory in a file counts with the process that made it, after that with one that imported it, and
// while only files have it with none.
func TestExport(t *testing.T) {
	third := event.Process{PID: 9, Start: 90}
	const file, file2 = 100, 200
	owned := makeMemory(4, first, 6*mib)
	out := makeExport(5, file, first)
	b, c := makeImport(6, shared2, file, of(other)), makeImport(7, shared3, file, of(third))
	exit := func(p event.Process) *event.Event { return ev(12, event.OpExit, of(p)) }
	tests := []struct {
		name   string
		events []*event.Event
		want   [3]int64 // MiB of proc, other, third
		lost   uint64
	}{
		{"with its owner", []*event.Event{owned, out, b, c}, [3]int64{6}, 0},
		{"with the importer, once the owner lets go", []*event.Event{owned, out, b, end(8, first)}, [3]int64{0, 6}, 0},
		{"with the latest of two", []*event.Event{owned, out, b, c, end(8, first)}, [3]int64{0, 0, 6}, 0},
		{"with nobody while only the file has it", []*event.Event{owned, out, end(5, first)}, [3]int64{}, 0},
		{"with who imports it then", []*event.Event{owned, out, end(5, first), b, c}, [3]int64{0, 6}, 0},
		{"with the next when that lets go", []*event.Event{owned, out, end(5, first), b, c, end(8, shared2, of(other))}, [3]int64{0, 0, 6}, 0},
		{"again with who imports again", []*event.Event{owned, out, end(5, first), b, end(8, shared2, of(other)), makeImport(9, shared3, file, of(third))}, [3]int64{0, 0, 6}, 0},
		{"of two files, from the other", []*event.Event{owned, out, makeExport(5, file2, first), end(5, first), makeImport(6, shared2, file2, of(other))}, [3]int64{0, 6}, 0},
		{"with the importer of an exporter that exits", []*event.Event{owned, out, b, exit(proc)}, [3]int64{6, 6}, 0},
		{"with the importer when its client ends", []*event.Event{owned, out, b, end(8, client)}, [3]int64{0, 6}, 0},
		{"a file for later memory has that", []*event.Event{owned, out, makeMemory(5, second, mib), makeExport(5, file, second), b, end(8, first), end(9, second)}, [3]int64{0, 1}, 0},
		{"a place that is made empty has none", []*event.Event{owned, out, makeExport(5, file, client>>32<<32), b, end(8, first)}, [3]int64{}, 1},
		{"an import of before the export is not of it", []*event.Event{owned, makeImport(4, shared2, file, of(other)), out, end(8, first)}, [3]int64{}, 1},
		{"one that failed exports nothing", []*event.Event{owned, makeExport(5, file, first, failed), b, end(8, first)}, [3]int64{}, 1},
		{"what is no memory exports nothing", []*event.Event{makeExport(5, file, device), b}, [3]int64{}, 1},
		{"another process's memory is found by its client", []*event.Event{owned, makeExport(5, file, first, of(third)), b, end(8, first)}, [3]int64{0, 6}, 0},
		{"no file has nothing", []*event.Event{owned, makeExport(5, 0, first), makeImport(6, shared2, 0, of(other)), end(8, first)}, [3]int64{}, 1},
		{"of several objects the first", []*event.Event{owned, makeExport(5, file, first, count(3)), makeImport(6, shared2, file, of(other), count(3)), end(8, first)}, [3]int64{0, 6}, 4},
		{"within a process", []*event.Event{owned, out, makeImport(6, second, file), end(8, first)}, [3]int64{6}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := New(ledger.Options{})
			apply(l, begun(client, 6, proc)...)
			apply(l, begun(client2, 6, other)...)
			apply(l, begun(client3, 6, third)...)
			apply(l, tt.events...)
			check(t, l)
			if d := cmp.Diff(tt.want, [3]int64{total(l, proc) / mib, total(l, other) / mib, total(l, third) / mib}); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
			if got := lossOf(l, "driver_shares_unknown"); got != tt.lost {
				t.Errorf("%d shares not known, want %d", got, tt.lost)
			}
			for _, p := range []event.Process{proc, other, third} {
				apply(l, exit(p))
			}
			if len(l.objects)+len(l.exports) != 0 {
				t.Errorf("%d objects and %d exports left", len(l.objects), len(l.exports))
			}
		})
	}
}

// What ends together passes nothing on among itself: no call site is made up.
func TestShareEndsTogether(t *testing.T) {
	for _, last := range []*event.Event{end(9, client), ev(9, event.OpExit), ev(9, event.OpExec), ev(9, event.OpDescriptorClose, number(5))} {
		l := run(makeMemory(4, first, 6*mib), makeShare(5, second, first), last)
		for s := range l.Rows.Sites {
			if s.Kind == event.KindShared {
				t.Errorf("op %d: a site of kind %s", last.Op, s.Kind)
			}
		}
	}
}

// A process that is forgotten passes on what it shared.
func TestForgetShare(t *testing.T) {
	l := New(ledger.Options{})
	apply(l, begun(client, 6, proc)...)
	apply(l, begun(client2, 6, other)...)
	apply(l, makeMemory(4, first, 6*mib), makeShare(5, shared2, first, of(other)))
	l.Forget(proc)
	if got := total(l, other); got != 6*mib {
		t.Errorf("held %d bytes, want 6 MiB", got)
	}
}

// A share of what is known to be no memory is no loss; one of what is not known is.
func TestShareLoss(t *testing.T) {
	l := run(ev(4, event.OpObject, name(first, device)), makeShare(5, second, first))
	if n := lossOf(l, "driver_shares_unknown"); n != 0 {
		t.Errorf("%d shares unknown, want none", n)
	}
	apply(l, makeShare(6, second, client>>32<<32|0x77)) // of a class that no row has
	if n := lossOf(l, "driver_shares_unknown"); n != 0 {
		t.Errorf("%d shares unknown, want none", n)
	}
	apply(l, makeShare(6, second, shared3))
	if n := lossOf(l, "driver_shares_unknown"); n != 1 {
		t.Errorf("%d shares unknown, want one", n)
	}
}
