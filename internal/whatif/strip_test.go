package whatif

import (
	"flag"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

var strip = flag.String("whatif.strip", "", "a recording of one process, which is written to FILE.stripped for the tests")

// Recordings for tests of a Fit need no more than tensors, and stacks as numbers.
func TestStrip(t *testing.T) {
	if *strip != "" {
		writeStripped(t, *strip, *strip+".stripped")
	}
	var runs []Measured
	for name, n := range map[string]float64{"peft_8.gmt": 8, "peft_16.gmt": 16} {
		file := filepath.Join(t.TempDir(), name)
		writeStripped(t, filepath.Join("../../test/recordings/allocator", name), file)
		x, err := Collect(file)
		if err != nil || len(x) != 1 {
			t.Fatal(len(x), err)
		}
		runs = append(runs, Measured{n, x[0]})
	}
	f, err := NewFit(runs)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.At(32).Peak; got != 31_625_052_160 {
		t.Errorf("at 32: peak %d, not as with the whole recordings", got)
	}
}

// writeStripped writes what a Fit reads of a recording.
func writeStripped(t *testing.T, from, to string) {
	t.Helper()
	runs, err := Collect(from)
	if err != nil || len(runs) != 1 {
		t.Fatal(len(runs), err)
	}
	x := runs[0]
	w := recordtest.Create(t, to)
	start := time.Unix(1_700_000_000, 0)
	p := event.Process{PID: 7, Start: event.StartUnit}
	w.Append(&record.Trace{Version: "1", Boot: start, Start: start})
	w.Append(&record.Process{Process: p, Target: true, FromStart: true, Name: x.Name})
	known := map[uint32]bool{}
	sizes := make([]uint64, len(x.Addresses))
	var allocated uint64
	for i := range x.Requests {
		q := &x.Requests[i]
		e := &event.Event{Proc: p, Time: uint64(i+1) * 1000, Op: event.OpTensorFree, Addr: x.Addresses[q.Tensor], Part: uint64(x.Reserved[i]) * unit}
		switch q.Op {
		case allocator.Empty:
			t.Fatal("PyTorch gave memory back")
		case allocator.Make:
			e.Op, e.Kind, e.Stack = event.OpTensorAlloc, event.KindTensor, uint64(x.Stacks[q.Tensor])+1
			sizes[q.Tensor] = uint64(q.Units) * unit
			allocated += sizes[q.Tensor]
			if s := x.Stacks[q.Tensor]; !known[s] {
				known[s] = true
				w.Append(&record.Stack{ID: e.Stack, Process: p, Frames: []*record.Place{record.NewPlace(e.Stack, e.Stack, stripped(x.Sites[s]), nil)}})
			}
		case allocator.Free:
			allocated -= sizes[q.Tensor]
		}
		e.Size, e.Handle = sizes[q.Tensor], allocated
		w.Append(e)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// stripped returns a frame that stands for a stack, with the functions by which a Fit knows it.
func stripped(s Site) *snapshot.Location {
	h := fnv.New64a()
	fmt.Fprint(h, s.Key)
	l := &snapshot.Location{Lines: []snapshot.Line{{Function: fmt.Sprintf("stack %016x, no frames recorded", h.Sum64())}}}
	for _, is := range []struct {
		name string
		ok   bool
	}{{convolution, s.Workspace}, {reduction, s.SumWorkspace}, {resized, s.SumResult}, {native + "cudnn_", s.CuDNN}, {native + recurrent[0], s.Recurrent}} {
		if is.ok {
			l.Lines = append(l.Lines, snapshot.Line{Function: is.name})
		}
	}
	return l
}
