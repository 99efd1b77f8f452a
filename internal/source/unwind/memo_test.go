package unwind

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// runPaths traces count calls and returns the capture when all events are in.
func runPaths(t testing.TB, opts Options, count int, order string) *capture {
	return runRow(t, opts, count, order, 1)
}

func runRow(t testing.TB, opts Options, count int, order string, row uint64) *capture {
	prog := buildProgram(t, "gcc", "paths", "-O2", "-fomit-frame-pointer", "testdata/paths.c")
	p := startTarget(t, prog, strconv.Itoa(count), order)
	c := newCapture(t, opts, p.pid)
	c.attach(buildLibrary(t), symbol, row)
	p.run()
	c.detach(uint64(count))
	return c
}

// The memo gives each event the stack that an unwind gives it.
func TestMemoChangesNothing(t *testing.T) {
	count := 256 << 10
	if testing.Short() {
		count = 32 << 10 // the kernel's part is the same each time
	}
	with := runPaths(t, Options{}, count, "2")
	s := with.stats()
	if s.Mismatched+s.Incomplete != 0 || s.MemoHits+s.Unwound != uint64(count) {
		t.Errorf("stats do not add up: %+v", s)
	}
	t.Logf("loss %v cost %v", with.loss(), with.cost())
	without := runPaths(t, Options{NoMemo: true}, count, "2")
	if s := without.stats(); s.MemoHits != 0 || s.Unwound != uint64(count) {
		t.Errorf("memo is off: %+v", s)
	}
	t.Logf("loss %v cost %v", without.loss(), without.cost())
	got := slices.Sorted(maps.Values(with.counts))
	want := slices.Sorted(maps.Values(without.counts))
	if len(got) != 64 || !slices.Equal(got, want) {
		t.Errorf("events by stack\nwith    %v\nwithout %v", got, want)
	}
}

// Every hit is unwound as well, and compared.
func TestVerify(t *testing.T) {
	const count = 20000
	c := runPaths(t, Options{VerifyStacks: 1}, count, "2")
	s := c.stats()
	if s.Verified != s.MemoHits || s.Verified < count/2 || s.Mismatched != 0 {
		t.Errorf("%+v", s)
	}
}

// BenchmarkExit reports what the kernel spends in the exit program and all that
// it calls on to, for one event of 39 frames.
func BenchmarkExit(b *testing.B) {
	for _, bb := range []struct {
		name  string
		opts  Options
		order string
		row   uint64
	}{
		{"no_stack", Options{}, "0", rowNoStack},
		{"memo_hit", Options{}, "0", 1},
		{"memo_hit_64_paths", Options{}, "1", 1},
		{"unwound", Options{NoMemo: true}, "0", 1},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportMetric(runRow(b, bb.opts, max(b.N, 100_000), bb.order, bb.row).cost(), "kernel-ns/event")
		})
	}
	for _, version := range []string{"3.10", "3.11", "3.12"} { // the last one numbers code objects
		for _, frames := range []int{13, 30} {
			b.Run(fmt.Sprintf("python_%s_memo_hit_%d_frames", version, frames), func(b *testing.B) {
				count := max(b.N, 20_000)
				i := slices.IndexFunc(installedPythons(), func(p string) bool { return strings.Contains(p, "/"+version) })
				if i < 0 {
					skip(b, "no CPython "+version)
				}
				library := buildLibrary(b)
				p := startTarget(b, installedPythons()[i], "testdata/deep.py", strconv.Itoa(count), strconv.Itoa(frames))
				c := newCapture(b, Options{}, p.pid)
				c.attach(library, symbol, 1)
				p.run()
				c.detach(uint64(count))
				if s := c.stats(); s.MemoHits < uint64(count)*99/100 {
					b.Errorf("%d hits of %d", s.MemoHits, count)
				}
				b.ReportMetric(c.cost(), "kernel-ns/event")
			})
		}
	}
}
