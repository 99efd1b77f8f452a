package state

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// trained tells a stack of native functions of PyTorch, of which the first is the one
// that reports a tensor, and after them of Python frames: "function file".
func trained(s *State, id uint64, native []string, python ...[2]string) {
	st := &record.Stack{ID: id, Process: prog}
	add := func(l *snapshot.Location) {
		st.Frames = append(st.Frames, record.NewPlace(id<<8+uint64(len(st.Frames)), l.Address, l, nil))
	}
	for i, function := range append([]string{"c10::reportMemoryUsageToProfiler"}, native...) {
		add(&snapshot.Location{Address: id<<8 + uint64(i), Mapping: &snapshot.Mapping{Path: "/lib/libtorch_cpu.so"}, Lines: []snapshot.Line{{Function: function}}})
	}
	for _, f := range python {
		add(&snapshot.Location{Lines: []snapshot.Line{{Function: f[0], File: f[1], Line: 7}}})
	}
	s.Apply(st)
}

const torch = "/usr/lib/python3.12/site-packages/torch/"

// inLinear are the Python frames of a Linear in a Net.
func inLinear() [][2]string {
	call := [2]string{"Module._call_impl", torch + "nn/modules/module.py"}
	return [][2]string{{"Linear.forward", torch + "nn/modules/linear.py"}, call, {"Net.forward", "/home/user/net.py"}, call, {"main", "/home/user/net.py"}}
}

// TestOperatorAndModule: every layer's samples say in which they were asked for.
func TestOperatorAndModule(t *testing.T) {
	s := watched()
	k := opened(s, prog, 6)
	trained(s, 1, []string{"at::_ops::addmm::call", "at::_ops::linear::call"}, inLinear()...)
	grow := alloc(prog, 10, 0x100000, 20*mib)
	grow.Stack = 1
	s.Apply(grow)
	s.Apply(tensor(11, 0x100000, mib, 1, mib))
	k.takes(12, "cuStreamCreate", mib, 1)
	snap := driven(s)
	left := map[string]bool{event.KindTensor.String(): true, event.KindCached.String(): true, event.KindStream.String(): true}
	for i := range snap.Samples {
		x := &snap.Samples[i]
		if left[x.Kind] && (x.Operator != "aten::linear" || x.Module != "Net/Linear") {
			t.Errorf("%s: operator %q, module %q", x.Kind, x.Operator, x.Module)
		}
		delete(left, x.Kind)
	}
	if len(left) > 0 {
		t.Errorf("no sample of %v", left)
	}
}

// TestCategory: what tensors are for follows from their stack and from who freed them.
func TestCategory(t *testing.T) {
	s := begun(record.Trace{})
	trained(s, 1, []string{"at::_ops::addmm::call", "at::_ops::linear::call"}, inLinear()...)
	trained(s, 2, []string{"at::_ops::mm::call", "torch::autograd::Engine::evaluate_function"})
	trained(s, 3, []string{"at::_ops::mul_Tensor::call"}, inLinear()...)
	on := func(thread uint32, e *event.Event) *event.Event {
		e.TID = thread
		return e
	}
	category := func() map[uint64]string {
		v := s.View(Want{})
		out, i := map[uint64]string{}, 0
		samples := v.Snapshot().Samples
		for key := range v.Sites {
			out[key.Stack], i = samples[i].Category, i+1
		}
		return out
	}
	s.Apply(tensor(10, 0x1000, 512, 1, 512))
	s.Apply(on(99, tensor(11, 0x2000, 512, 2, 1024)))
	expect(t, "live", map[uint64]string{1: "activation", 2: "gradient"}, category())

	s.Apply(on(99, tensorEnd(12, 0x2000, 512, 512)))
	s.Apply(tensorEnd(13, 0x1000, 512, 0))
	expect(t, "freed by who made them", map[uint64]string{1: "temporary", 2: "temporary"}, category())

	s.Apply(tensor(14, 0x1000, 512, 1, 512))
	s.Apply(tensor(15, 0x3000, 512, 3, 1024))
	s.Apply(tensorEnd(16, 0x1000, 512, 512))
	s.Apply(on(99, tensor(17, 0x2000, 512, 2, 1024)))
	s.Apply(tensorEnd(18, 0x2000, 512, 512))
	expect(t, "after another operator, and by another thread", map[uint64]string{1: "activation", 2: "gradient", 3: "activation"}, category())

	// Tensors alone have one.
	grow := alloc(prog, 20, 0x100000, 20*mib)
	grow.Stack = 9
	s.Apply(grow)
	if got := category(); got[9] != "" {
		t.Errorf("an allocation is %q", got[9])
	}
	// What a process held when it ended keeps its own.
	s.Apply(exit(prog, 30))
	s.Apply(&record.Moment{Time: 1 << 40, Drained: true})
	expect(t, "after the end", map[uint64]string{1: "activation", 2: "gradient", 3: "activation", 9: ""}, category())
}

// TestStackOfTensor: neither the call that reports a tensor nor its own frame is shown.
func TestStackOfTensor(t *testing.T) {
	s := begun(record.Trace{})
	trained(s, 1, []string{"at::_ops::mm::call"}, inLinear()[0])
	interpreted := &record.Stack{ID: 3, Process: prog, Frames: []*record.Place{
		record.NewPlace(300, 0, &snapshot.Location{Lines: []snapshot.Line{{Function: "Net.forward", File: "/home/user/net.py", Line: 7}}}, nil)}}
	s.Apply(interpreted) // the unwind ended before it began
	for i := range uint64(3) {
		e := tensor(10+i, 0x1000*(i+1), 512, i+1, 512*(i+1)) // the second one's stack was not told yet
		e.API = 1
		s.Apply(e)
	}
	snap := s.View(Want{}).Snapshot()
	var got [][]string
	for i := range snap.Samples {
		x := &snap.Samples[i]
		var names []string
		for _, l := range x.Frames() {
			names = append(names, l.Lines[0].Function)
		}
		got = append(got, append(names, x.API))
	}
	expect(t, "frames and api", [][]string{{"at::_ops::mm::call", "Linear.forward", "cuMemAlloc_v2"}, {"[no stack]", "cuMemAlloc_v2"}, {"Net.forward", "cuMemAlloc_v2"}}, got)
}
