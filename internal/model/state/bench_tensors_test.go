package state

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
)

const (
	benchTensors = 100_000
	benchStacks  = 10_000
	benchLayers  = 200 // each is called at as many stacks
)

// pytorchStacks yields stacks as those of PyTorch's tensors: a path through modules in
// each other, operators in each other, or the backward pass; 40 to 60 frames.
func pytorchStacks(proc event.Process, yield func(record.Record)) (ids []uint64) {
	const torch = "/venv/lib/python3.12/site-packages/torch/"
	library := &snapshot.Mapping{Start: 0x7f0000000000, Limit: 0x7f0010000000, Path: torch + "lib/libtorch_cpu.so", BuildID: "cd"}
	places := map[string]*record.Place{}
	place := func(function, file string, line int) *record.Place {
		key := fmt.Sprint(function, file, line)
		if places[key] == nil {
			l := &snapshot.Location{Lines: []snapshot.Line{{Function: function, File: file, Line: line}}}
			id := uint64(len(places) + 1)
			if file == "" {
				l.Address, l.Mapping = library.Start+64*id, library
			}
			places[key] = record.NewPlace(id, l.Address, l, nil)
		}
		return places[key]
	}
	native := func(name string) *record.Place { return place(name, "", 0) }
	for i := range benchStacks {
		layer, op := i%benchLayers, i/benchLayers
		frames := []*record.Place{native("c10::reportMemoryUsageToProfiler"), native("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc")}
		for _, name := range []string{"empty_strided", "empty_like", fmt.Sprintf("op%d_Tensor", op)} {
			frames = append(frames, native("at::_ops::"+name+"::call"), native("at::native::"+name), native("c10::impl::wrap_kernel_functor_unboxed_<"+name+">::call"))
		}
		if i%3 == 0 {
			frames = append(frames, native(fmt.Sprintf("torch::autograd::generated::Op%dBackward0::apply", op)), native("torch::autograd::Node::operator()"),
				native("torch::autograd::Engine::evaluate_function"), native("torch::autograd::Engine::thread_main"), native("start_thread"))
		} else {
			for depth := range 8 {
				n := layer / (depth + 1)
				frames = append(frames, place(fmt.Sprintf("Block%d.forward", n), "/home/me/model.py", 10+n), place("Module._call_impl", torch+"nn/modules/module.py", 1790),
					place("Module._wrapped_call_impl", torch+"nn/modules/module.py", 1779), native("_PyEval_EvalFrameDefault"), native("PyObject_Call"))
			}
			frames = append(frames, place("step", "/home/me/train.py", 20+i%7), place("<module>", "/home/me/train.py", 90))
		}
		ids = append(ids, uint64(i+1)*0x9e3779b97f4a7c15)
		yield(&record.Stack{ID: ids[i], Process: proc, Frames: frames})
	}
	return ids
}

// withTensors is the state of a process that trains, with benchTensors live tensors of
// benchStacks stacks, after ten times as many that it freed.
func withTensors(b *testing.B) *State {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	proc := event.Process{PID: 4711, Start: event.StartUnit}
	s := New()
	begin := time.Unix(1_700_000_000, 0)
	s.Apply(&record.Trace{Target: "pid 4711 (python3)", Start: begin, Boot: begin, APIs: []string{"", "cuMemAlloc_v2", "c10::reportMemoryUsageToProfiler"}})
	s.Apply(&record.Process{Process: proc, Target: true, Name: "python3", FromStart: true})
	stacks := pytorchStacks(proc, s.Apply)
	const piece, segment = 64 << 10, 20 << 20
	at := uint64(0)
	tell := func(e event.Event) {
		at++
		e.Time, e.Proc = at, proc
		s.Apply(&e)
	}
	address := func(i int) uint64 { return 1<<40 + uint64(i)*piece }
	for i := range uint64((benchTensors*piece + segment - 1) / segment) {
		tell(event.Event{Op: event.OpAlloc, Kind: event.KindDevice, API: 1, Stack: stacks[i%100], Addr: 1<<40 + i*segment, Size: segment})
	}
	live, allocated := make([]bool, benchTensors), uint64(0)
	report := func(i int) {
		e := event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, API: 2, TID: uint32(1 + i%2), Addr: address(i), Size: piece, Part: benchTensors * piece}
		if live[i] {
			e.Op, e.Kind, e.TID = event.OpTensorFree, event.KindNone, uint32(1+rng.IntN(2))
			allocated -= piece
		} else {
			e.Stack = stacks[rng.IntN(benchStacks)]
			allocated += piece
		}
		live[i], e.Handle = !live[i], allocated
		tell(e)
	}
	for range 20 * benchTensors {
		report(rng.IntN(benchTensors))
	}
	for i := range live {
		if !live[i] {
			report(i)
		}
	}
	s.Apply(&record.Moment{Time: at + 1, Drained: true})
	return s
}

// BenchmarkTensors is a profile with tensors: its part that a tracer's lock is held for,
// what is made of that, and the file.
func BenchmarkTensors(b *testing.B) {
	s := withTensors(b)
	b.Run("view", func(b *testing.B) {
		for b.Loop() {
			s.View(Want{Live: true})
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if out := s.View(Want{Live: true}).Snapshot(); len(out.Live) < benchTensors || len(out.Samples) < benchStacks {
				b.Fatal(len(out.Live), len(out.Samples))
			}
		}
	})
	b.Run("profile", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := pprof.Write(io.Discard, s.View(Want{}).Snapshot()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
