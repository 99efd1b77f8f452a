package snapshottest

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Tensors is a process that trains with PyTorch, of which the tensor layer is known:
// operators in each other, modules in each other, and each category.
func Tensors() *snapshot.Snapshot {
	const torch = "/venv/lib/python3.12/site-packages/torch/"
	cpu := &snapshot.Mapping{Start: 0x7f1000000000, Limit: 0x7f1010000000, Path: torch + "lib/libtorch_cpu.so", BuildID: "cc33"}
	natives := map[string]*snapshot.Location{}
	stack := func(native []string, python ...*snapshot.Location) (out []*snapshot.Location) {
		for _, name := range append([]string{"c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc"}, native...) {
			if natives[name] == nil {
				natives[name] = &snapshot.Location{Address: cpu.Start + uint64(0x100*(len(natives)+1)), Mapping: cpu, Lines: []snapshot.Line{{Function: name}}}
			}
			out = append(out, natives[name])
		}
		return append(out, python...)
	}
	op := func(names ...string) (out []string) {
		for _, name := range names {
			out = append(out, "at::_ops::"+name+"::call")
		}
		return out
	}
	call := Frame("Module._call_impl", torch+"nn/modules/module.py", 1790)
	step, main := Frame("step", "/home/me/train.py", 20), Frame("<module>", "/home/me/train.py", 31)
	net := []*snapshot.Location{Frame("Net.forward", "/home/me/train.py", 13), call, step, main}
	block := append([]*snapshot.Location{Frame("Block.forward", "/home/me/block.py", 8), call}, net...)
	linear := append([]*snapshot.Location{Frame("Linear.forward", torch+"nn/modules/linear.py", 134), call}, block...)
	norm := append([]*snapshot.Location{Frame("LayerNorm.forward", torch+"nn/modules/normalization.py", 229), call}, block...)
	backward := []string{"torch::autograd::generated::AddmmBackward0::apply", "torch::autograd::Node::operator()", "torch::autograd::Engine::evaluate_function"}

	tensors := func(category, operator, module string, objects, each int64, freed int64, frames []*snapshot.Location) snapshot.Sample {
		return snapshot.Sample{Stack: frames, Labels: snapshot.Labels{
			Kind: "tensor", API: "c10::reportMemoryUsageToProfiler", GPU: "0", Owner: "pytorch", Operator: operator, Module: module, Category: category, Process: "python3", PID: 30,
		}, Values: snapshot.Values{
			AllocObjects: objects + freed, AllocBytes: (objects + freed) * each, PeakBytes: max(objects, 1) * each, InuseObjects: objects, InuseBytes: objects * each,
		}}
	}
	cached := tensors("", "aten::linear", "Net/Block/Linear", 0, 0, 0, append([]*snapshot.Location{API("[cached, unused]"), API("cuMemAlloc_v2")}, stack(op("addmm", "linear"), linear...)...))
	cached.Kind, cached.API, cached.Values = "cached", "cuMemAlloc_v2", snapshot.Values{InuseObjects: 4, InuseBytes: 21 << 20, PeakBytes: 9 << 20}
	return &snapshot.Snapshot{
		Meta:     snapshot.Meta{Version: "0.1.0", Target: "pid 30 (python3)", Driver: "580.159.04", Start: Start, Duration: time.Minute},
		Mappings: []*snapshot.Mapping{cpu},
		Samples: []snapshot.Sample{
			tensors("parameter", "aten::to", "", 12, 4<<20, 0, stack(op("empty_strided", "_to_copy", "to_dtype_layout"), Frame("Module._apply", torch+"nn/modules/module.py", 965), Frame("Module._apply", torch+"nn/modules/module.py", 934), main)),
			tensors("input", "aten::to", "", 1, 2<<20, 5, stack(op("empty_strided", "_to_copy", "to_dtype_layout"), step, main)),
			tensors("activation", "aten::linear", "Net/Block/Linear", 6, 8<<20, 30, stack(op("addmm", "linear"), linear...)),
			tensors("temporary", "aten::linear", "Net/Block/Linear", 0, 8<<20, 36, stack(op("empty_memory_format", "empty_like", "clone", "reshape", "matmul", "linear"), linear...)),
			tensors("activation", "aten::layer_norm", "Net/Block/LayerNorm", 6, 3<<20, 30, stack(op("empty_memory_format", "native_layer_norm", "layer_norm"), norm...)),
			tensors("activation", "aten::add", "Net/Block", 6, 1<<20, 30, stack(op("add_Tensor"), block...)),
			tensors("gradient", "AddmmBackward0", "", 12, 4<<20, 60, stack(append(op("mm"), backward...))),
			tensors("optimizer_state", "aten::zeros_like", "", 24, 4<<20, 0, stack(op("empty_strided", "empty_like", "zeros_like"), Frame("Adam._init_group", torch+"optim/adam.py", 178), Frame("Adam.step", torch+"optim/adam.py", 238), step, main)),
			cached,
		},
		Processes: []snapshot.Process{{PID: 30, Name: "python3", Inuse: 287 << 20, Peak: 300 << 20, Allocated: 300 << 20, LiveObjects: 4}},
		Allocators: []snapshot.Allocator{{PID: 30, Process: "python3", GPU: "0", Segments: []snapshot.Segments{
			{Class: "small", Small: true, Count: 2, Reserved: 4 << 20, Allocated: 3 << 20, Cached: 1 << 20, FreeBlocks: 3, LargestFree: 512 << 10},
			{Class: "large", Count: 12, Reserved: 240 << 20, Allocated: 225 << 20, Cached: 15 << 20, FreeBlocks: 5, LargestFree: 6 << 20},
			{Class: "larger", Count: 2, Reserved: 43 << 20, Allocated: 38 << 20, Cached: 5 << 20, FreeBlocks: 1, LargestFree: 5 << 20, Releasable: 5 << 20},
		}}, {PID: 31, Process: "sam\x1bpled", GPU: "1", Outside: 7 << 20, Unseen: 3 << 20, Segments: []snapshot.Segments{
			{Class: "expandable_large", Expandable: true, Count: 1, Reserved: 100 << 20, Allocated: 61 << 20, Cached: 39 << 20, FreeBlocks: 2, LargestFree: 30 << 20, Releasable: 20 << 20},
		}}},
	}
}

// Pools is Tensors, of which a CUDA graph and torch.cuda.MemPool have memory of their own,
// and of some it is not known whether they do.
func Pools() *snapshot.Snapshot {
	s := Tensors()
	of := &s.Allocators[0].Segments
	*of = append(*of,
		snapshot.Segments{Private: "0.1", Class: "larger", Count: 1, Reserved: 30 << 20, Allocated: 30 << 20},
		snapshot.Segments{Private: "1.0", Class: "small", Small: true, Count: 1, Reserved: 2 << 20, Allocated: 512, Cached: 2<<20 - 512, FreeBlocks: 1, LargestFree: 2<<20 - 512},
		snapshot.Segments{Private: "1.0", Class: "large", Count: 2, Reserved: 40 << 20, Allocated: 12 << 20, Cached: 28 << 20, FreeBlocks: 2, LargestFree: 20 << 20, Kept: 20 << 20},
		snapshot.Segments{Private: "unknown", Class: "large", Count: 1, Reserved: 20 << 20, Allocated: 13 << 20, Cached: 7 << 20, FreeBlocks: 1, LargestFree: 7 << 20},
	)
	return s
}
