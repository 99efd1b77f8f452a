package export

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// lineShare is the share of what a process has on a GPU from which on one line of the
// program is worth naming.
const lineShare = 0.5

// fits says whether the tensor would have had room in the allocator's cached memory, "" where
// that is not known.
func fits(o *snapshot.OutOfMemory) string {
	if o.Tensor <= 0 || o.Allocator == nil || o.Private == unknownPool {
		return ""
	}
	pool := o.Allocator.Pool(o.Tensor, o.Private)
	doubt := o.Allocator.Pool(o.Tensor, unknownPool) // which may be this one too
	cached, largest := bytefmt.Format(pool.Cached), bytefmt.Format(pool.LargestFree)
	where := ""
	if o.Private != "" {
		where = " in private pool " + o.Private
	}
	switch {
	case o.Allocator.Unseen != 0:
		return ""
	case o.Tensor <= pool.LargestFree:
		return fmt.Sprintf("There was a free block of %s%s, but the allocator did not use it, because a block serves only one stream or one graph.", largest, where)
	case o.Tensor <= doubt.LargestFree, o.Tensor > pool.Cached && o.Tensor <= pool.Cached+doubt.Cached:
		return ""
	case o.Tensor > pool.Cached:
		return fmt.Sprintf("It would not have fitted into the %s that were cached for such tensors%s, even if these had been one piece.", cached, where)
	default:
		return fmt.Sprintf("The %s that were cached for such tensors%s would have been enough, but none of the %s free blocks was: the largest has %s.",
			cached, where, bytefmt.Count(pool.FreeBlocks), largest)
	}
}

// unknownPool is the Private of segments that may be of any private pool.
const unknownPool = "unknown"

// elsewhere says how much was cached where this tensor could not be, "" for nothing.
func elsewhere(o *snapshot.OutOfMemory) string {
	a := o.Allocator
	if o.Tensor <= 0 || a == nil || a.Unseen != 0 || o.Private == unknownPool {
		return ""
	}
	var cached int64
	for i := range a.Segments {
		if s := &a.Segments[i]; s.Private != o.Private && s.Private != "" && s.Private != unknownPool {
			cached += s.Cached
		}
	}
	if cached == 0 {
		return ""
	}
	return bytefmt.Format(cached) + " more were cached in private pools of CUDA graphs or torch.cuda.MemPool, which serve only their own requests."
}

// advice returns the one change that the figures support, "" for none.
func advice(o *snapshot.OutOfMemory) string {
	for _, of := range []func(*snapshot.OutOfMemory) string{tooLarge, expand, emptyOwn, emptyOther, ownLimit, largestLine} {
		if text := of(o); text != "" {
			return text
		}
	}
	return ""
}

// fullGPU returns what the driver said of the GPU that ran out, nil for nothing.
func fullGPU(o *snapshot.OutOfMemory) *snapshot.GPUMemory {
	for i := range o.GPUs {
		if g := &o.GPUs[i]; g.GPU == o.GPU && g.Total > 0 {
			return g
		}
	}
	return nil
}

// tooLarge: no GPU of this size could have held it.
func tooLarge(o *snapshot.OutOfMemory) string {
	if g := fullGPU(o); g != nil && max(o.Tensor, o.Requested) > g.Total {
		return fmt.Sprintf("ask for less at once: the GPU has %s in all.", bytefmt.Format(g.Total))
	}
	return ""
}

// ownLimit: the framework refused by itself.
func ownLimit(o *snapshot.OutOfMemory) string {
	if o.Calls == 0 && o.Framework != nil {
		return "raise the limit that the program gave PyTorch (torch.cuda.set_per_process_memory_fraction, or an option of the program's own such as vLLM's --gpu-memory-utilization), or ask for less."
	}
	return ""
}

// expand: the free memory between tensors, in segments that cannot grow, would have held the
// tensor. Segments without a tensor do not count: they are given back. Private pools do not
// count: they may belong to an allocator that is plugged in, which ignores the setting. A prediction knows better.
func expand(o *snapshot.OutOfMemory) string {
	a := o.Allocator
	if o.Predicted != "" || o.Tensor <= 0 || a == nil || a.Unseen != 0 || o.Private != "" ||
		slices.ContainsFunc(a.Segments, func(s snapshot.Segments) bool { return s.Expandable && s.Private == "" }) {
		return ""
	}
	pool, doubt := a.Pool(o.Tensor, ""), a.Pool(o.Tensor, unknownPool)
	if between := pool.Cached - pool.Releasable; o.Tensor <= between && o.Tensor > max(pool.LargestFree, doubt.LargestFree) {
		return fmt.Sprintf("start the program with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of the value that it may have, and unset PYTORCH_ALLOC_CONF, because %s lay free between tensors, in segments that cannot grow.",
			bytefmt.Format(between))
	}
	return ""
}

// emptyOwn: a call that was not the framework's could have used its allocator's cache.
func emptyOwn(o *snapshot.OutOfMemory) string {
	if o.Recovered || o.Framework != nil || o.Calls == 0 || o.Allocator == nil || o.Allocator.Unseen != 0 || isAllocator(o.Stack) {
		return ""
	}
	if given := o.Allocator.Total().Releasable; given >= o.Requested {
		return fmt.Sprintf("torch.cuda.empty_cache() before this call, which is not PyTorch's own: it could have released %s of segments without a tensor.", bytefmt.Format(given))
	}
	return ""
}

// isAllocator reports whether PyTorch's caching allocator is on a stack.
func isAllocator(stack []*snapshot.Location) bool {
	return stacks.Any(stack, func(line *snapshot.Line) bool { return strings.Contains(line.Function, "CachingAllocator") })
}

// emptyOther: another traced process on the GPU has enough cached memory.
func emptyOther(o *snapshot.OutOfMemory) string {
	if o.Recovered || o.Calls == 0 {
		return "" // a limit of the framework's own is not on what others hold
	}
	lacks := max(o.Requested, o.Tensor)
	if g := fullGPU(o); g != nil {
		lacks -= g.Free
	}
	for i := range o.Snapshot.Allocators {
		a := &o.Snapshot.Allocators[i]
		if given := a.Total().Releasable; a.PID != o.PID && a.GPU == o.GPU && a.Unseen == 0 && lacks > 0 && given >= lacks {
			return fmt.Sprintf("torch.cuda.empty_cache() in %s (%d), on the same GPU: it could have released %s of segments without a tensor.", a.Process, a.PID, bytefmt.Format(given))
		}
	}
	return ""
}

// largestLine: the tensors of one line of the program are most of its memory there.
func largestLine(o *snapshot.OutOfMemory) string {
	if o.Recovered {
		return ""
	}
	var all int64
	held := map[string]int64{}
	for i := range o.Snapshot.Samples {
		if s := &o.Snapshot.Samples[i]; there(o, s) {
			all += s.InuseBytes
			if isTensor(s) {
				held[ownLine(s)] += s.InuseBytes
			}
		}
	}
	for line, bytes := range held {
		if line != "" && float64(bytes) > lineShare*float64(all) {
			return fmt.Sprintf("allocate less at %s: this line holds %s of the process's memory on the GPU, %s in tensors.", line, bytefmt.Percent(bytes, all), bytefmt.Format(bytes))
		}
	}
	return ""
}

func isTensor(s *snapshot.Sample) bool { return s.Kind == snapshot.Tensor }

// ownLine returns the line of the program's own code that is nearest to the leaf, ""
// for none.
func ownLine(s *snapshot.Sample) string {
	if lines, own := stacks.Own(s.Stack); own {
		return render.Name(lines[0])
	}
	return ""
}
