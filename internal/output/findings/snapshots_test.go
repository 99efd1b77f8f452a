package findings

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// What rules are tried with.

const (
	mib   = 1 << 20
	torch = "/venv/lib/python3.12/site-packages/torch/"
)

var main = snapshottest.Frame("<module>", "/home/me/train.py", 31)

func python(function, file string, line int) *snapshot.Location {
	return snapshottest.Frame(function, file, line)
}

// A made is a snapshot that a test adds to: one process on GPU 0.
type made struct{ *snapshot.Snapshot }

// training holds 1 GiB of activations that nothing is wrong with.
func training() made {
	m := made{&snapshot.Snapshot{
		Meta:      snapshot.Meta{Start: snapshottest.Start, Duration: time.Minute},
		Processes: []snapshot.Process{{PID: 7, Name: "python3", Who: snapshot.Who{Command: "python3 train.py"}}},
		Accounts:  []snapshot.Account{{PID: 7, GPU: "0", Known: true}},
	}}
	m.tensors(stacks.Activation, "aten::linear", 12, 1024*mib, python("step", "/home/me/train.py", 20), main)
	return m
}

// hold adds a sample.
func (m made) hold(l snapshot.Labels, objects, bytes int64, stack ...*snapshot.Location) *snapshot.Sample {
	if l.PID == 0 {
		l.PID, l.Process, l.GPU = 7, "python3", "0"
	}
	m.Samples = append(m.Samples, snapshot.Sample{Stack: stack, Labels: l, Values: snapshot.Values{AllocObjects: objects, AllocBytes: bytes, InuseObjects: objects, InuseBytes: bytes}})
	return &m.Samples[len(m.Samples)-1]
}

func (m made) tensors(category, operator string, objects, bytes int64, stack ...*snapshot.Location) {
	m.hold(snapshot.Labels{Kind: snapshot.Tensor, Category: category, Operator: operator}, objects, bytes, stack...)
}

// heap adds a reading with a model of 8 parameters of 16 MiB, and these storages.
func (m made) heap(storages ...holder.Storage) *holder.Reading {
	r := &holder.Reading{}
	for i := range 8 {
		r.Storages = append(r.Storages, holder.Storage{Address: uint64(i + 1), Bytes: 16 * mib, Role: holder.Parameter, Holder: fmt.Sprintf("model.layers[%d].weight", i),
			Shape: []int64{2048, int64(2048 + i)}, DType: "float32", Class: "Parameter", Tensors: 1})
	}
	r.Storages = append(r.Storages, storages...)
	m.Heaps = append(m.Heaps, snapshot.Heap{PID: 7, Begin: m.Meta.Start.Add(50 * time.Second), End: m.Meta.Start.Add(51 * time.Second), Reading: r})
	return r
}

// storages are n of so many bytes each, whose paths have a %d.
func storages(n int, path string, bytes uint64, change func(*holder.Storage)) (out []holder.Storage) {
	for i := range n {
		s := holder.Storage{Address: uint64(1000 + i), Bytes: bytes, Holder: path, Shape: []int64{int64(bytes) / 4}, DType: "float32", Class: "Tensor", Tensors: 1}
		if strings.Contains(path, "%d") {
			s.Holder = fmt.Sprintf(path, i)
		}
		if change != nil {
			change(&s)
		}
		out = append(out, s)
	}
	return out
}

// steps adds training steps of a second each, and live tensors of a stack that each of them left.
func (m made) steps(n int, left int64) {
	of := snapshot.Steps{PID: 7, GPU: "0", Begun: true, Seen: int64(n)}
	m.tensors(stacks.Activation, "aten::mul", int64(n), int64(n)*left, python("collect", "/home/me/train.py", 40), main)
	sample := len(m.Samples) - 1
	m.Samples[sample].Holder = "history[3]"
	for i := range n {
		begin := m.Meta.Start.Add(time.Duration(30+i) * time.Second)
		of.Last = append(of.Last, snapshot.Step{Number: int64(i + 1), Begin: begin, Took: time.Second, Moved: snapshot.Moved{InuseBytes: 1024 * mib}})
		if left > 0 {
			m.Live = append(m.Live, snapshot.Allocation{Sample: sample, Address: uint64(1000 + i), Size: left, Time: begin.Add(time.Millisecond)})
		}
	}
	m.Steps = append(m.Steps, of)
}

func adam(function string) []*snapshot.Location {
	return []*snapshot.Location{python(function, torch+"optim/adam.py", 500), python("Adam.step", torch+"optim/adam.py", 240),
		python("Optimizer.profile_hook_step.<locals>.wrapper", torch+"optim/optimizer.py", 500), python("update", "/home/me/train.py", 25), main}
}

func context(pid int, gpu string) snapshot.Labels {
	return snapshot.Labels{Kind: event.KindContext.String(), PID: pid, Process: "python3", GPU: gpu}
}

// begins adds the gradients with which so many backward passes began.
func (m made) begins(passes int64) {
	m.tensors(stacks.Gradient, "aten::ones_like", passes, passes*512, python("_make_grads", torch+"autograd/__init__.py", 250), main)
}

// checkpoints holds activations under a checkpoint, and what backward passes made, which recomputed
// them or did not.
func checkpoints(recomputes bool, passes int64) *snapshot.Snapshot {
	m := training()
	m.begins(passes)
	under := []*snapshot.Location{python("Block.forward", "/home/me/model.py", 8), python("checkpoint", torch+"utils/checkpoint.py", 490), python("Net.forward", "/home/me/model.py", 30), main}
	m.tensors(stacks.Activation, "aten::gelu", 24, 2048*mib, under...)
	m.tensors(stacks.Gradient, "MmBackward0", 4, 64*mib, main)
	if recomputes {
		m.tensors(stacks.Activation, "aten::gelu", 1, 64*mib, under[0], python("_checkpoint_without_reentrant_generator.<locals>.recompute_fn", torch+"utils/checkpoint.py", 1400))
	}
	return m.Snapshot
}

func copies(n int) (out []holder.Storage) {
	for i := range n {
		out = append(out, holder.Storage{Address: uint64(1000 + i), Bytes: 16 * mib, Holder: fmt.Sprintf(`checkpoint["model"]["layers.%d.weight"]`, i),
			Shape: []int64{2048, int64(2048 + i)}, DType: "float32", Class: "Tensor", Tensors: 1})
	}
	return out
}

// idle is a model of which one part is never called: one module, or several.
func idle(operator string, one bool) *snapshot.Snapshot {
	m := training()
	m.hold(snapshot.Labels{Kind: snapshot.Tensor, Category: stacks.Activation, Operator: operator, Module: "Net/Linear", ModulePath: "model.encoder[0]"}, 20, 64*mib, main)
	r := m.heap()
	r.Modules = []holder.Module{{Path: "model"}, {Path: "model.encoder"}, {Path: "model.encoder[0]"}, {Path: "model.decoder"}}
	for i := range r.Storages {
		s := &r.Storages[i]
		s.Module = "model.encoder[0]"
		if i < 4 {
			s.Module = fmt.Sprintf("model.decoder[%d]", i)
			if one {
				s.Module = "model.decoder"
			}
			r.Modules = append(r.Modules, holder.Module{Path: s.Module})
		}
	}
	return m.Snapshot
}

// stale has gradients of the last step while the next runs, and the newest tensor is of a category.
func stale(newest string) *snapshot.Snapshot {
	m := training()
	m.steps(20, 0)
	last := m.Steps[0].Last[19]
	m.tensors(stacks.Gradient, "AddmmBackward0", 4, 256*mib, native("torch::autograd::Engine::evaluate_function", 9))
	m.tensors(newest, "aten::linear", 1, 64*mib, main)
	n := len(m.Samples)
	for i, at := range []time.Duration{-time.Millisecond, time.Millisecond} {
		m.Live = append(m.Live, snapshot.Allocation{Sample: n - 2 + i, Size: []int64{256 * mib, 64 * mib}[i], Time: last.Begin.Add(last.Took + at)})
	}
	return m.Snapshot
}

// evalMode trains a model whose layers are checkpointed in training mode.
func evalMode(eval bool) *snapshot.Snapshot {
	m := training()
	m.begins(2)
	m.hold(snapshot.Labels{Kind: snapshot.Tensor, Category: stacks.Activation, Operator: "aten::gelu", Module: "Net/Block/MLP", ModulePath: "model.layers[3].mlp"}, 24, 2048*mib, python("Block.forward", "/home/me/model.py", 8), main)
	m.tensors(stacks.Gradient, "MmBackward0", 4, 64*mib, main)
	m.heap().Modules = []holder.Module{{Path: "model", Training: !eval}, {Path: "model.layers[3]", Training: !eval, Checkpoints: true}}
	return m.Snapshot
}

// evaluation is a training whose model was called without a backward pass, so long after the last step.
func evaluation(trains bool, after time.Duration) *snapshot.Snapshot {
	m := made{inference(true)}
	m.steps(20, 0)
	last := m.Steps[0].Last[19]
	h := &m.Heaps[0]
	m.Meta.Duration = last.Begin.Add(last.Took + after).Sub(m.Meta.Start)
	h.Begin = last.Begin.Add(last.Took + time.Second)
	h.Reading.Modules = []holder.Module{{Path: "model", Training: trains}}
	for i := range 8 {
		m.Live = append(m.Live, snapshot.Allocation{Address: uint64(1000 + i), Size: 32 * mib, Time: h.Begin.Add(-time.Millisecond)})
	}
	return m.Snapshot
}

// inference is a program without an optimizer whose graph is kept, or of one that trains.
func inference(trains bool) *snapshot.Snapshot {
	m := training()
	if trains {
		m.tensors(stacks.Gradient, "MmBackward0", 4, 64*mib, main)
	}
	m.heap(storages(8, "out.grad_fn (graph of 40 nodes)", 32*mib, func(s *holder.Storage) { s.Role = holder.Activation })...)
	return m.Snapshot
}

// ranOut is a program that ran out of memory before it made a gradient.
func ranOut(trains bool) *snapshot.Snapshot {
	s := inference(false)
	s.Processes[0].OutOfMemory = 1
	s.Heaps[0].Reading.Modules = []holder.Module{{Path: "model", Training: trains}}
	return s
}

// trees are a model, and another tree of modules with n parameters of the same shapes.
func trees(trained bool, n int) *snapshot.Snapshot {
	m := training()
	r := m.heap()
	for i := range r.Storages {
		r.Storages[i].Module, r.Storages[i].RequiresGrad = fmt.Sprintf("model.layers[%d]", i), true
	}
	for i := range n {
		s := r.Storages[i]
		s.Address, s.Module, s.Holder, s.RequiresGrad = s.Address+1000, fmt.Sprintf("average.layers[%d]", i), fmt.Sprintf("average.layers[%d].weight", i), trained
		r.Storages = append(r.Storages, s)
	}
	return m.Snapshot
}

// gathers is an evaluation that keeps n results of all that one line made, and has made others since.
func gathers(n, all int, operator string, since int) *snapshot.Snapshot {
	m := training()
	m.tensors(stacks.Unknown, operator, int64(n), int64(n)*32*mib, python("evaluate", "/home/me/eval.py", 9), main)
	m.Samples[len(m.Samples)-1].AllocObjects = int64(all)
	for i := range n + since {
		a := snapshot.Allocation{Sample: len(m.Samples) - 1, Address: uint64(1000 + i), Size: 32 * mib, Time: m.Meta.Start.Add(time.Duration(i) * time.Second)}
		if i >= n {
			a.Sample, a.Size = 0, mib
		}
		m.Live = append(m.Live, a)
	}
	m.heap(storages(n, "outputs[%d]", 32*mib, nil)...)
	return m.Snapshot
}

func inPieces(releasable int64) *snapshot.Snapshot {
	m := training()
	m.Allocators = []snapshot.Allocator{{PID: 7, GPU: "0", Segments: []snapshot.Segments{{Class: "large", Count: 200, Reserved: 4096 * mib, Allocated: 3296 * mib, Cached: 800 * mib, Releasable: releasable}}}}
	return m.Snapshot
}

func native(function string, line int) *snapshot.Location {
	return &snapshot.Location{Address: uint64(line), Mapping: &snapshot.Mapping{Path: "/usr/lib/libnccl.so.2"}, Lines: []snapshot.Line{{Function: function, File: "init.cc", Line: line}}}
}

// groups is NCCL with n communicators.
func groups(n int64) *snapshot.Snapshot {
	m := training()
	nccl := snapshot.Labels{Kind: event.KindDevice.String(), Owner: "nccl", PID: 7, GPU: "0", Process: "python3"}
	for _, line := range []int{556, 566} {
		m.hold(nccl, n, n*mib, native("devCommSetup", line), main)
	}
	m.hold(nccl, 16*n, n*252*mib, native("initChannel", 42), main)
	return m.Snapshot
}

func planned(n int64) *snapshot.Snapshot {
	m := training()
	m.hold(snapshot.Labels{Kind: event.KindDevice.String(), Owner: "cufft"}, n, n*32*mib, main)
	return m.Snapshot
}

// bucketed has gradients beside the buckets of DistributedDataParallel.
func bucketed(gradients int64) *snapshot.Snapshot {
	m := training()
	m.tensors(stacks.Bucket, "", 20, 512*mib, native("c10d::Reducer::initialize_buckets", 9), python("DistributedDataParallel._ddp_init_helper", torch+"nn/parallel/distributed.py", 1200), main)
	m.tensors(stacks.Gradient, "AccumulateGrad", 40, gradients, main)
	return m.Snapshot
}

// blocks are ten of one size, or if that is 0 of ten sizes.
func blocks(state holder.BlockState, size uint64) *snapshot.Snapshot {
	m := training()
	a := holder.Allocator{Blocks: []holder.Block{{Size: 1024 * mib, State: holder.Allocated, First: true}}}
	for i := range uint64(10) {
		a.Blocks = append(a.Blocks, holder.Block{Size: cmp.Or(size, (100+i)*mib), State: state, First: true})
	}
	m.heap().Allocators = []holder.Allocator{a}
	return m.Snapshot
}

// ranks are two processes of one command, the second of which works on a GPU where the first has a context and
// a tensor.
func ranks(gpu string) *snapshot.Snapshot {
	m := training()
	m.hold(context(7, "1"), 17, 518*mib, main)
	m.hold(snapshot.Labels{Kind: snapshot.Tensor, Owner: "pytorch", PID: 7, Process: "python3", GPU: "1"}, 1, 256*mib, main)
	m.Processes = append(m.Processes, snapshot.Process{PID: 8, Name: "python3", Who: m.Processes[0].Who})
	m.hold(snapshot.Labels{Kind: snapshot.Tensor, Owner: "pytorch", PID: 8, Process: "python3", GPU: gpu}, 1, 2048*mib, main)
	m.tensors(stacks.Parameter, "aten::to", 4, 1024*mib, main)
	return m.Snapshot
}

func pools(private ...string) *snapshot.Snapshot {
	m := training()
	a := snapshot.Allocator{PID: 7, GPU: "0"}
	for _, p := range private {
		a.Segments = append(a.Segments, snapshot.Segments{Private: p, Class: "large", Count: 1, Reserved: 100 * mib})
	}
	m.Allocators = append(m.Allocators, a)
	return m.Snapshot
}

func spawned(command string) *snapshot.Snapshot {
	m := training()
	for pid := 11; pid < 14; pid++ {
		m.hold(context(pid, "0"), 17, 518*mib, python("start", "/home/me/data.py", 5))
		m.Processes = append(m.Processes, snapshot.Process{PID: pid, Name: "python3", Who: snapshot.Who{Command: command}})
	}
	return m.Snapshot
}

// left has a child whose parent ended.
func left(at time.Duration) *snapshot.Snapshot {
	s := spawned("python3 train.py")
	s.Processes[0].Exited = true
	s.Processes[1].Parent, s.Processes[1].ParentEnded = 7, s.Meta.Start.Add(at)
	return s
}

// startedBy are processes of another command that one process started.
func startedBy(parent int) *snapshot.Snapshot {
	s := spawned("python3 decode.py")
	for i := range s.Processes[1:] {
		s.Processes[1+i].Parent = parent
	}
	return s
}

func imported(kind, file string) *snapshot.Snapshot {
	m := training()
	m.hold(snapshot.Labels{Kind: kind}, 1, 8192*mib, python("<module>", "/venv/lib/python3.12/site-packages/grid/__init__.py", 3), python("_call_with_frames_removed", file, 488), main)
	return m.Snapshot
}
