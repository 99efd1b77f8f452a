// Package holdertest has readings of heaps that tests share.
package holdertest

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// lost is what a reading here counts.
var lost = loss.Of("heap_lists_cut_short", "lists of the heap that changed each time they were read")

// Begin is when Training was read, in nanoseconds of CLOCK_MONOTONIC.
const Begin = 9_000_000_000_000

// Training is a training program that leaks: a model of three layers with its gradients
// and the state of its optimizer, losses that keep their graphs, a batch in a local
// variable of a thread, a tensor that a reference cycle holds, a workspace that no object
// holds, and a tensor in the CPU's memory.
func Training() *holder.Reading { return training(4) }

// Later is Training after five more steps: its losses grew, the cycle is gone, and the
// batch is another one.
func Later() *holder.Reading {
	r := training(9)
	r.Begin, r.End = r.Begin+5e9, r.End+5e9
	for i := range r.Storages {
		if s := &r.Storages[i]; s.Cycle {
			r.Storages = append(r.Storages[:i:i], r.Storages[i+1:]...)
			break
		}
	}
	return r
}

func training(steps int) *holder.Reading {
	r := &holder.Reading{Runtime: "CPython 3.12", Framework: "PyTorch", Begin: Begin, End: Begin + 412_000_000, Objects: 442_870,
		Loss: []loss.Counter{lost.Counter(2)}}
	address := uint64(0x7f2a00000000)
	add := func(s holder.Storage) {
		s.Address = address
		address += (s.Bytes + 511) &^ 511
		s.Tensors, s.Holders = max(s.Tensors, 1), max(s.Holders, len(s.More)+1)
		if s.DType == "" {
			s.DType = "float32"
		}
		if s.Class == "" {
			s.Class = "Tensor"
		}
		r.Storages = append(r.Storages, s)
	}
	for i, path := range []string{"model", "model.layers", "model.layers[0]", "model.layers[1]", "model.layers[2]", "model.norm"} {
		r.Modules = append(r.Modules, holder.Module{Address: 0x7f1000000010 + uint64(i)<<12, Path: path})
	}
	for layer := range 3 {
		module := fmt.Sprintf("model.layers[%d]", layer)
		for _, p := range []struct {
			name  string
			shape []int64
			bytes uint64
		}{{"weight", []int64{1024, 1024}, 4 << 20}, {"bias", []int64{1024}, 4096}} {
			name := module + "." + p.name
			add(holder.Storage{Bytes: p.bytes, Role: holder.Parameter, Holder: name, Module: module, More: []string{fmt.Sprintf(`optimizer.param_groups[0]["params"][%d]`, 2*layer)},
				Shape: p.shape, Class: "Parameter", RequiresGrad: true})
			add(holder.Storage{Bytes: p.bytes, Role: holder.Gradient, Holder: name + ".grad", Module: module, Shape: p.shape})
			for _, state := range []string{"exp_avg", "exp_avg_sq"} {
				add(holder.Storage{Bytes: p.bytes, Role: holder.OptimizerState, Holder: fmt.Sprintf(`optimizer.state[%s]["%s"]`, name, state), Module: module, Shape: p.shape})
			}
		}
	}
	add(holder.Storage{Bytes: 4096, Role: holder.Buffer, Holder: "model.norm.running_mean", Module: "model.norm", Shape: []int64{1024}})
	for i := range steps {
		loss := fmt.Sprintf("trainer.history[%d]", i)
		add(holder.Storage{Bytes: 4, Holder: loss, RequiresGrad: true})
		for _, node := range []string{"MulBackward0", "AddmmBackward0"} {
			add(holder.Storage{Bytes: 20 << 20, Role: holder.Activation, Holder: loss + ".grad_fn", Node: node, Shape: []int64{5120, 1024}})
		}
	}
	batch := `thread "prefetch": local batch`
	if steps > 4 {
		address += 1 << 30
	}
	add(holder.Storage{Bytes: 3 << 20, Holder: batch, More: []string{"loader.queue[0]"}, Tensors: 2, Shape: []int64{256, 3, 32, 32}})
	add(holder.Storage{Bytes: 8 << 20, Holder: "reference cycle: Node.values", Shape: []int64{2048, 1024}, Cycle: true})
	add(holder.Storage{Bytes: 8519680, Shape: []int64{8519680}, DType: "uint8", Holders: 0})
	r.Storages[len(r.Storages)-1].Holders = 0
	add(holder.Storage{Bytes: 1 << 20, Device: -1, Holder: "dataset.images", Shape: []int64{1 << 20}, DType: "uint8"})
	graph := uint64(steps) * 40 << 20
	r.Retainers = []holder.Retainer{
		{Holder: "trainer", Class: "Trainer", Retained: graph + uint64(steps)*4, Graph: graph, Storages: 3 * steps},
		{Holder: "trainer.history", Class: "list", Items: steps, Retained: graph + uint64(steps)*4, Graph: graph, Storages: 3 * steps},
		{Holder: "optimizer.state", Class: "defaultdict", Items: 6, Retained: 24<<20 + 6*4096, Storages: 12},
		{Holder: "model", Class: "Net", Retained: 24<<20 + 7*4096, Storages: 13},
		{Holder: "model.layers[0].weight", Class: "Parameter", Retained: 8 << 20, Storages: 2},
	}
	return r
}
