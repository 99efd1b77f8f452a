package whatif

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

var events = flag.Int("whatif.events", 300_000, "events of the long recording")

// long writes a recording of so many events: BERT's requests over and over, of an
// allocator that keeps its cache.
func long(t testing.TB, n int) string {
	t.Helper()
	x := recording(t, "allocator/bert.gmt")
	path := filepath.Join(t.TempDir(), "long.gmt")
	w := recordtest.Create(t, path)
	start := time.Unix(1_700_000_000, 0)
	p := event.Process{PID: 7, Start: event.StartUnit}
	w.Append(&record.Trace{Version: "1", Boot: start, Start: start})
	w.Append(&record.Process{Process: p, Target: true, FromStart: true, Name: "python3"})
	a := allocator.New(allocator.Settings{})
	for i := 0; i < n; {
		blocks := map[uint32]*allocator.Block{}
		put := func(op event.Op, b *allocator.Block, stack uint64) {
			e := &event.Event{Proc: p, Time: uint64(i) * 1000, Op: op, Addr: b.Address, Size: b.Size, Handle: a.Allocated, Part: a.Reserved, Stack: stack}
			w.Append(e)
			i++
		}
		for _, q := range x.Requests {
			switch b := blocks[q.Tensor]; q.Op {
			case allocator.Make:
				b = a.Allocate(uint64(q.Units)*unit, 0, 0)
				blocks[q.Tensor] = b
				put(event.OpTensorAlloc, b, uint64(x.Stacks[q.Tensor])+1)
			case allocator.Free:
				size := *b
				a.Free(b)
				put(event.OpTensorFree, &size, 0)
				delete(blocks, q.Tensor)
			}
		}
		for _, b := range blocks {
			size := *b
			a.Free(b)
			put(event.OpTensorFree, &size, 0)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.Loss() {
		if c.Value != 0 {
			t.Fatalf("%s = %d", c.Name, c.Value)
		}
	}
	return path
}

// BenchmarkLong predicts a long run under ten settings, from its file:
// -whatif.events 10000000 -benchtime 1x.
func BenchmarkLong(b *testing.B) {
	path := long(b, *events)
	b.ResetTimer()
	for b.Loop() {
		runs, err := Collect(path)
		if err != nil || len(runs) != 1 {
			b.Fatal(len(runs), err)
		}
		more, err := ParseSetting("garbage_collection_threshold:0.8,max_split_size_mb:256")
		if err != nil {
			b.Fatal(err)
		}
		p := Predict(runs[0], Options{More: []Setting{more}})
		if p.Reason != "" || p.Same != p.Tensors || len(p.Rows) < 10 {
			b.Fatalf("%d of %d tensors, %d rows: %s", p.Same, p.Tensors, len(p.Rows), p.Reason)
		}
	}
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		b.Logf("at most %s kB resident", regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(status)[1])
	}
}

// A recording of many events within the time in which they may be out of order is read in
// about as many steps as it has events, whatever their number.
func TestLong(t *testing.T) {
	runs, err := Collect(long(t, 200_000))
	if err != nil || len(runs) != 1 {
		t.Fatal(len(runs), err)
	}
	x := runs[0]
	if n := len(x.Requests); n < 200_000 || len(x.Reserved) != n || len(x.Times) != n || x.Partial != "" {
		t.Errorf("%d requests, %d sizes, %d times, %s", n, len(x.Reserved), len(x.Times), x.Partial)
	}
	if c := x.Check(allocator.Settings{}); c.Same != c.Made {
		t.Errorf("%d of %d tensors where they were", c.Same, c.Made)
	}
}
