package findings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// Of the peak, what is made there and not kept is told from so many parts in a hundred on.
const leastOfPeak = 10

// optimizerTemporaries: an optimizer that computes all parameters at once (foreach) makes tensors as
// large as all of them, only within its step.
func optimizerTemporaries(l *look, u *use) (out []Finding) {
	made := l.where(u, func(s *snapshot.Sample) bool {
		call, ok := stacks.Step(s.Stack)
		return ok && call.ID != 0 && tensor(s, stacks.OptimizerTemporary) && together(s)
	})
	if bytes, _ := l.sumOf(made); matters(bytes, u.bytes) && bytes >= u.bytes/100*leastOfPeak {
		out = append(out, Finding{
			Says:   fmt.Sprintf("The optimizer's step%s makes %s of temporary tensors at the peak, because it updates all parameters together (foreach).", l.lines(made)[0].at(), bytefmt.Format(bytes)),
			Bytes:  bytes,
			Change: "Pass fused=True (Adam, AdamW, SGD; it rounds differently), or else foreach=False, which is slower. When you resume, also set it in state[\"param_groups\"] before load_state_dict(state), which takes it from there.",
		})
	}
	return out
}

// together reports whether an optimizer computes several parameters in one call.
func together(s *snapshot.Sample) bool {
	return strings.HasPrefix(s.Operator, "aten::_foreach_") || hasFunction(s.Stack, "_multi_tensor_")
}

// hasFunction reports whether a frame's function begins with a prefix, whatever its class is.
func hasFunction(stack []*snapshot.Location, prefix string) bool {
	return stacks.Any(stack, func(x *snapshot.Line) bool { return strings.HasPrefix(x.Function, prefix) })
}

// typeCopies: a few tensors that a conversion made are a tenth of the peak. at::_ops::to_dtype takes no device:
// other forms of .to() may copy from elsewhere.
func typeCopies(l *look, u *use) (out []Finding) {
	for _, s := range l.where(u, func(s *snapshot.Sample) bool {
		return s.Operator == "aten::to" && hasFunction(s.Stack, "at::_ops::to_dtype::") && s.InuseObjects <= 4 && (tensor(s, stacks.Activation) || tensor(s, stacks.Temporary))
	}) {
		bytes := l.held(s)
		if !matters(bytes, u.bytes) || bytes < u.bytes/100*leastOfPeak {
			continue
		}
		what := "A copy of one tensor in another type takes"
		if s.InuseObjects > 1 {
			what = fmt.Sprintf("Copies of %d tensors in another type take", s.InuseObjects)
		}
		out = append(out, Finding{
			Says:   fmt.Sprintf("%s %s of the peak%s.", what, bytefmt.Format(bytes), madeAt(line(s))),
			Bytes:  bytes,
			Change: "If these are logits, use a fused linear cross-entropy (Liger; torchtune). Or compute projection and loss in chunks, each under checkpoint(use_reentrant=False), with reduction=\"sum\", and divide by the number of labels at the end. Otherwise leave out the conversion, if you can.",
		})
	}
	return out
}

// checkpointing: activations of modules that are checkpointed are held, a second backward pass has begun, so
// that one has ended, and none recomputed anything.
func checkpointing(l *look, u *use) (out []Finding) {
	begun, again := int64(0), false
	for i := range l.end.Samples {
		s := &l.end.Samples[i]
		if s.PID != u.pid || s.Kind != snapshot.Tensor {
			continue
		}
		if s.Category == stacks.Gradient && hasFunction(s.Stack, "_make_grads") {
			begun += s.AllocObjects
		}
		again = again || stacks.Checkpointed(s.Stack) == stacks.CheckpointAgain
	}
	if begun < 2 || again {
		return out
	}
	told := func(where, why, change string, is func(*snapshot.Sample) bool) {
		kept := l.where(u, func(s *snapshot.Sample) bool { return tensor(s, stacks.Activation) && is(s) })
		bytes, objects := l.sumOf(kept)
		if !matters(bytes, u.bytes) || bytes < u.bytes/100*leastOfPeak {
			return
		}
		out = append(out, Finding{
			Says:   fmt.Sprintf("Gradient checkpointing%s has no effect%s: %s (%s)%s, stay until the backward pass, which recomputes nothing.", where, why, bytefmt.Counted(objects, "activation"), bytefmt.Format(bytes), madeAt(l.lines(kept)[0].name)),
			Bytes:  bytes,
			Change: change,
		})
	}
	told("", "", "Tensors that a torch.autograd.Function stores on ctx stay: call ctx.save_for_backward(...) instead, and read ctx.saved_tensors in backward.",
		func(s *snapshot.Sample) bool { return stacks.Checkpointed(s.Stack) == stacks.CheckpointForward })
	if path, classes := l.evalMode(u.pid); path != "" {
		told(" of `"+path+"`", ", because the model is in eval mode", "Call model.train() before training, and again after each evaluation: from_pretrained() returns a model in eval mode. Dropout is then on again, and BatchNorm updates its statistics.",
			func(s *snapshot.Sample) bool { return classes[s.Module] })
	}
	return out
}

// evalMode returns the path to the modules of a process whose gradient checkpointing is on, in eval mode, and
// the classes of what they call. Paths may have been others at the peak.
func (l *look) evalMode(pid int) (path string, classes map[string]bool) {
	classes = map[string]bool{}
	for _, h := range l.heaps {
		for _, m := range h.Reading.Modules {
			if h.PID != pid || !m.Checkpoints || m.Training {
				continue
			}
			path = holder.Alike(m.Path)
			for i := range l.end.Samples {
				if s := &l.end.Samples[i]; s.PID == pid && s.Module != "" && within(s.ModulePath, m.Path) {
					classes[s.Module] = true
				}
			}
		}
	}
	return path, classes
}

// workspaces: cuBLAS has a workspace for each thread and each stream that called it. Two threads, the
// program's and autograd's, with three streams are usual: a CUDA graph is captured on one, after another.
func workspaces(l *look, u *use) (out []Finding) {
	const usual = 6
	all := l.where(u, func(s *snapshot.Sample) bool { return tensor(s, stacks.Workspace) })
	bytes, _ := l.sumOf(all)
	if objects := mostAlike(all); objects > usual && matters(bytes, u.bytes) {
		out = append(out, Finding{
			Says:   fmt.Sprintf("cuBLAS keeps %d workspaces (%s), one for each stream and thread that multiplies matrices%s.", objects, bytefmt.Format(bytes), l.lines(all)[0].first()),
			Bytes:  bytes,
			Change: "Multiply on fewer streams and threads, or start with CUBLAS_WORKSPACE_CONFIG=:16:8 (128 KiB each; :4096:2, 8 MiB, costs less speed on Hopper), which may be slower and round differently.",
		})
	}
	return out
}

// plans: cuFFT has tables on the GPU for each plan, which PyTorch and CuPy keep for each shape. To make one
// takes more memory for a moment, which may be the peak.
func plans(l *look) (out []Finding) {
	const usual = 8
	left := newLook(l.end, l.end)
	for _, u := range l.uses {
		of := l
		if i := slices.IndexFunc(left.uses, func(x *use) bool { return x.pid == u.pid && x.gpu == u.gpu && x.bytes > 0 }); i >= 0 {
			of, u = left, left.uses[i]
		}
		all := of.where(u, func(s *snapshot.Sample) bool {
			return s.Owner == "cufft" && snapshot.Class(s.Kind) == event.ClassDevice.String()
		})
		if bytes, objects := of.sumOf(all); objects > usual && matters(bytes, u.bytes) {
			out = append(out, Finding{
				Says:   fmt.Sprintf("cuFFT keeps %s in %s for its plans, of which PyTorch and CuPy keep one for each shape and type%s.", bytefmt.Format(bytes), bytefmt.Counted(objects, "allocation"), of.lines(all)[0].first()),
				Bytes:  bytes,
				Change: "Keep fewer plans than there are shapes, such as two: torch.backends.cuda.cufft_plan_cache.max_size = 2 in PyTorch (for the current GPU), cupy.fft.config.get_plan_cache().set_size(2) in CuPy. Plans are then made again, which is slower. If padding does not change the result, pad to few shapes.",
			})
		}
	}
	return out
}

// buckets: DistributedDataParallel copies each gradient into a bucket, to send it. Both are held. It makes its
// buckets anew once, and the old ones may still be there at the peak.
func buckets(l *look, u *use) (out []Finding) {
	copied, _ := l.sumOf(l.where(u, func(s *snapshot.Sample) bool {
		return tensor(s, stacks.Bucket)
	}))
	gradients, _ := l.sumOf(l.where(u, func(s *snapshot.Sample) bool {
		return tensor(s, stacks.Gradient)
	}))
	if bytes := min(copied, gradients); matters(bytes, u.bytes) && copied >= gradients/100*80 {
		out = append(out, Finding{
			Says:   fmt.Sprintf("DistributedDataParallel has a copy of each gradient in its buckets: %s.", bytefmt.Format(bytes)),
			Bytes:  bytes,
			Change: "Pass gradient_as_bucket_view=True to it: each .grad is then a part of its bucket. Never call .grad.detach_(), and clone a .grad that you keep.",
		})
	}
	return out
}

// mostAlike counts the objects that are about as large as the largest: beside each workspace of cuBLAS there
// may be a small one of cublasLt.
func mostAlike(all []*snapshot.Sample) (n int64) {
	size := func(s *snapshot.Sample) int64 { return s.InuseBytes / max(s.InuseObjects, 1) }
	largest := int64(0)
	for _, s := range all {
		largest = max(largest, size(s))
	}
	for _, s := range all {
		if size(s) >= largest/2 {
			n += s.InuseObjects
		}
	}
	return n
}

// graphPools: CUDA graphs keep several pools. Graphs that run one after the other can share
// the largest. There may be more of them at the end than at the peak.
func graphPools(l *look) (out []Finding) {
	for i := range l.end.Allocators {
		of := graphPoolsOf(&l.end.Allocators[i])
		if j := slices.IndexFunc(l.peak.Allocators, func(a snapshot.Allocator) bool {
			return a.PID == l.end.Allocators[i].PID && a.GPU == l.end.Allocators[i].GPU
		}); j >= 0 {
			if then := graphPoolsOf(&l.peak.Allocators[j]); then.saves() > of.saves() {
				of = then
			}
		}
		if of.pools < 2 || !matters(of.saves(), of.reserved) {
			continue
		}
		out = append(out, Finding{
			Says:   fmt.Sprintf("%d private pools of CUDA graphs take %s in all: they cannot use each other's memory.", of.pools, bytefmt.Format(of.bytes)),
			Bytes:  of.saves(),
			Change: fmt.Sprintf("Capture the largest first, and the others with torch.cuda.graph(g, pool=first_graph.pool()): up to %s less. Then replay one at a time, and copy an output before the next replay. If one reads what another wrote, keep the order of capture.", bytefmt.Format(of.saves())),
		})
	}
	return out
}

// graphMemory is what an allocator has in private pools of CUDA graphs.
type graphMemory struct {
	pools                    int
	bytes, largest, reserved int64 // of all pools, of one, and of the allocator
}

// saves is what one pool for all graphs would save at most.
func (m graphMemory) saves() int64 { return m.bytes - m.largest }

func graphPoolsOf(a *snapshot.Allocator) (m graphMemory) {
	pools := map[string]int64{}
	for i := range a.Segments {
		s := &a.Segments[i]
		if id, graph := strings.CutSuffix(s.Private, ".0"); graph && id != "0" {
			pools[s.Private] += s.Reserved
			m.bytes, m.largest = m.bytes+s.Reserved, max(m.largest, pools[s.Private])
		}
	}
	total := a.Total()
	m.pools, m.reserved = len(pools), total.Reserved
	return m
}

// Fragmentation is told from so many bytes on, and so many parts in a hundred of what is reserved: small
// programs always have some, since PyTorch takes 2 and 20 MiB at once.
const (
	leastFragmented = 256 << 20
	leastReserved   = 15
)

// fragmentation: much of what the allocator reserved is cached beside tensors that live, so that neither
// a larger tensor nor another process can have it. With expandable segments no setting helps.
func fragmentation(l *look) (out []Finding) {
	for i := range l.peak.Allocators {
		a := &l.peak.Allocators[i]
		lost := fragmented(a)
		if lost == 0 {
			continue
		}
		f := Finding{
			Says:   fmt.Sprintf("Fragmentation wastes %s of the %s that PyTorch reserved: free pieces lie beside live tensors, and cannot be given back.", bytefmt.Format(lost), bytefmt.Format(a.Total().Reserved)),
			Bytes:  lost,
			Change: "gpumemtrace whatif RUN says which setting of PyTorch's allocator saves how much. If none helps, use fewer different shapes: group or pad batches to a few lengths, with a mask.",
		}
		if s := l.setting(a); s != nil {
			f.Bytes, f.Change = s.Saves, s.Says+" "+s.use()
		}
		out = append(out, f)
	}
	return out
}

// fragmented is how much an allocator loses to fragmentation, 0 if it is not worth telling.
func fragmented(a *snapshot.Allocator) int64 {
	sum := a.Total()
	lost := sum.Cached - sum.Releasable - sum.Kept
	if lost < leastFragmented || lost < sum.Reserved/100*leastReserved || slices.ContainsFunc(a.Segments, func(s snapshot.Segments) bool { return s.Expandable }) {
		return 0
	}
	return lost
}

// setting returns what helps an allocator, nil for nothing.
func (l *look) setting(a *snapshot.Allocator) *Setting {
	i := slices.IndexFunc(l.settings, func(s Setting) bool { return s.PID == a.PID && s.GPU == a.GPU })
	if i < 0 {
		return nil
	}
	return &l.settings[i]
}

// settings: a run repeated with another setting of PyTorch's allocator takes less, or serves a request that
// failed. Where memory is fragmented, that finding says so.
func settings(l *look) (out []Finding) {
	for i := range l.settings {
		s := &l.settings[i]
		if slices.ContainsFunc(l.peak.Allocators, func(a snapshot.Allocator) bool { return l.setting(&a) == s && fragmented(&a) > 0 }) {
			continue
		}
		out = append(out, Finding{Says: fmt.Sprintf("PyTorch reserves more than its tensors need in %s (pid %d). %s", s.Process, s.PID, s.Says), Bytes: s.Saves, Change: s.use()})
	}
	return out
}

// communicators: NCCL sets up its state on the GPU once for each communicator, in devCommSetup. Processes with
// as many from one line are ranks of one job.
func communicators(l *look) (out []Finding) {
	const usual = 4
	type kind struct {
		n    int64
		line string
	}
	var kinds []kind
	most, sum, gpus := map[kind]int64{}, map[kind]int64{}, map[kind][]string{}
	for _, u := range l.uses {
		bytes, _ := l.sumOf(l.where(u, func(s *snapshot.Sample) bool { return s.Owner == "nccl" }))
		n, first := l.communicatorsOf(u.pid)
		if n <= usual || !matters(bytes, u.bytes) {
			continue
		}
		k := kind{n, line(first)}
		if gpus[k] == nil {
			kinds = append(kinds, k)
		}
		most[k], sum[k], gpus[k] = max(most[k], bytes), sum[k]+bytes, append(gpus[k], u.gpu)
	}
	for _, k := range kinds {
		where := "on GPU " + gpus[k][0]
		if len(gpus[k]) > 1 {
			where = "on each of GPUs " + strings.Join(gpus[k], ", ")
		}
		out = append(out, Finding{
			Says:   fmt.Sprintf("NCCL holds up to %s %s for %d communicators%s.", bytefmt.Format(most[k]), where, k.n, madeAt(k.line)),
			Bytes:  sum[k],
			Change: "Create each process group once and reuse it. When its work is done, call dist.destroy_process_group(group) on all of its ranks. Single sends make a communicator for each pair of ranks: use batch_isend_irecv, after a first collective of the whole group.",
		})
	}
	return out
}

// communicatorsOf counts the communicators of a process, and returns what one of them took.
func (l *look) communicatorsOf(pid int) (n int64, first *snapshot.Sample) {
	made := map[int]int64{} // by the line of devCommSetup
	for i := range l.peak.Samples {
		s := &l.peak.Samples[i]
		if s.PID != pid || s.Owner != "nccl" {
			continue
		}
		for _, loc := range s.Stack {
			if x := loc.Lines[len(loc.Lines)-1]; x.Function == "devCommSetup" {
				made[x.Line] += s.InuseObjects
				n, first = max(n, made[x.Line]), s
			}
		}
	}
	return n, first
}
