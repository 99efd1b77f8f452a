package findings

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A keep is what the objects of one path, numbers aside, keep.
type keep struct {
	path     string // without numbers if there are several
	bytes    int64
	storages int
	others   int   // paths of less that were added
	part     int64 // bytes of a tensor in one of the storages
	scalar   bool  // that tensor has no dimensions
	all      []*holder.Storage
}

// keeps adds up the storages on GPUs for which f is true, by path, the largest first.
func keeps(r *holder.Reading, f func(*holder.Storage) bool) (out []keep) {
	at := map[string]int{}
	for i := range r.Storages {
		s := &r.Storages[i]
		if !s.OnGPU() || !f(s) {
			continue
		}
		alike := holder.Alike(s.Name())
		j, ok := at[alike]
		if !ok {
			j, out = len(out), append(out, keep{path: s.Name()})
			at[alike] = j
		}
		k := &out[j]
		if k.storages > 0 {
			k.path = alike
		}
		k.bytes, k.storages, k.part = k.bytes+bytesOf(s.Bytes), k.storages+1, tensorBytes(s)
		k.scalar, k.all = len(s.Shape) == 0, append(k.all, s)
	}
	sorting.Stable(out, func(a, b keep) int { return cmp.Compare(b.bytes, a.bytes) })
	return out
}

// variable returns a path without the graph that it leads to.
func variable(path string) string {
	name, _, _ := strings.Cut(path, ".grad_fn")
	return name
}

// itemBytes are the sizes of types of numbers, in bytes.
var itemBytes = map[string]int64{
	"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "uint32": 4,
	"float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}

// tensorBytes is what the named tensor of a storage would need, 0 if that is not known.
func tensorBytes(s *holder.Storage) int64 {
	n := itemBytes[strings.TrimPrefix(s.DType, "torch.")]
	for _, d := range s.Shape {
		if d < 0 || n > 1<<48 {
			return 0
		}
		n *= d
	}
	return n
}

// onlyView reports whether nothing but the named tensor keeps a storage: the tensor that it is a view of
// lies there too, even under no_grad, but has no other holder.
func onlyView(s *holder.Storage) bool {
	return s.Tensors == 1 || s.Tensors == 2 && s.Holders == 2 && slices.Equal(s.More, []string{s.Holder + "._base"})
}

// smallViews: the one tensor that lies in a storage is an eighth of it or less. One scalar alone may be a
// loss: those of PyTorch keep a storage as large as what they are the mean of.
func smallViews(h snapshot.Heap) (out []Finding) {
	const less = 8
	for _, k := range keeps(h.Reading, func(s *holder.Storage) bool {
		n := tensorBytes(s)
		return s.Role == holder.NoRole && onlyView(s) && n > 0 && n*less <= bytesOf(s.Bytes) && s.Class == "Tensor"
	}) {
		if !matters(k.bytes, onGPU(h.Reading)) || k.storages == 1 && k.scalar {
			continue
		}
		says := fmt.Sprintf("`%s` has %s, but keeps a storage of %s.", k.path, bytefmt.Format(k.part), bytefmt.Format(k.bytes))
		if k.storages > 1 {
			says = fmt.Sprintf("%d small tensors, `%s`, of %s each, keep storages of %s in all.", k.storages, k.path, bytefmt.Format(k.part), bytefmt.Format(k.bytes))
		}
		out = append(out, Finding{Says: says, Bytes: k.bytes, object: object{h.PID, k.path}, Change: "Keep a copy: x.detach().clone(). Leave out detach() only if you differentiate through it."})
	}
	return out
}

// A read is a heap, and when tensors were made that it has, by their addresses.
type read struct {
	snapshot.Heap
	made map[uint64]*snapshot.Allocation
	of   *snapshot.Snapshot // whose samples they are of
}

// reads returns the readings of heaps at the end and before the peak, with the tensors that are still held
// there: those that were made before a reading were there when it was made.
func (l *look) reads() []read {
	if l.read != nil {
		return l.read
	}
	for _, s := range []*snapshot.Snapshot{l.end, l.peak} {
		for _, h := range s.Heaps {
			if h.Reading.Refused != "" {
				continue
			}
			r := read{h, map[uint64]*snapshot.Allocation{}, s}
			for i := range s.Live {
				a := &s.Live[i]
				if of := &s.Samples[a.Sample]; of.PID == h.PID && of.Kind == snapshot.Tensor && a.Time.Before(h.Begin) {
					r.made[a.Address] = a
				}
			}
			l.read = append(l.read, r)
		}
		if l.end == l.peak {
			break
		}
	}
	return l.read
}

// oldGraphs: what autograd's graphs alone keep was made before the training step that was the last one to
// end, so the graph outlived a step.
func oldGraphs(l *look) (out []Finding) {
	found := map[int]bool{} // processes
	for _, r := range l.reads() {
		begin := stepBegan(l.end, r.PID, r.Begin)
		if begin.IsZero() || found[r.PID] {
			continue
		}
		for _, k := range keeps(r.Reading, func(s *holder.Storage) bool {
			a := r.made[s.Address]
			return s.Role == holder.Activation && strings.Contains(s.Name(), ".grad_fn") && a != nil && a.Time.Before(begin)
		}) {
			if matters(k.bytes, onGPU(r.Reading)) {
				found[r.PID] = true
				out = append(out, Finding{
					Says:   fmt.Sprintf("`%s` still links to the graphs of earlier training steps, which keep %s in %s.", variable(k.path), bytefmt.Format(k.bytes), bytefmt.Counted(k.storages, "tensor")),
					Bytes:  k.bytes,
					Change: "If no later loss needs gradients through earlier steps, write x = x.detach() before each step. Then also leave out retain_graph=True if only this needed it.",
					object: object{r.PID, k.path},
				})
			}
		}
	}
	return out
}

// gathered: a container keeps many results, of which none was freed, and the last were made when the program
// was read.
func gathered(l *look) (out []Finding) {
	const many, latest = 16, 8
	found := map[int]bool{}
	for _, r := range l.reads() {
		var freed map[**snapshot.Location]int64
		for _, k := range keeps(r.Reading, func(s *holder.Storage) bool {
			return s.Role == holder.NoRole && strings.HasSuffix(holder.Alike(s.Name()), "[*]") && r.made[s.Address] != nil
		}) {
			if found[r.PID] || k.storages < many || !matters(k.bytes, onGPU(r.Reading)) || k.bytes < onGPU(r.Reading)/100*leastOfPeak {
				continue
			}
			if freed == nil {
				freed = freedBy(r.of, r.PID)
			}
			var samples []*snapshot.Sample
			var last time.Time
			results := true
			for _, s := range k.all {
				a := r.made[s.Address]
				of := &r.of.Samples[a.Sample]
				results = results && result(of) && freed[&of.Stack[0]] == 0
				if a.Time.After(last) {
					last = a.Time
				}
				samples = append(samples, of)
			}
			newer := 0
			for _, a := range r.made {
				if a.Time.After(last) {
					newer++
				}
			}
			if results && newer < latest {
				found[r.PID] = true
				out = append(out, Finding{
					Says:   fmt.Sprintf("`%s` keeps all results on the GPU: %s (%s)%s.", k.path, bytefmt.Counted(k.storages, "tensor"), bytefmt.Format(k.bytes), madeAt(l.lines(samples)[0].name)),
					Bytes:  k.bytes,
					Change: "If no loss uses them, append x.detach().cpu(), or only what the metric needs.",
					object: object{r.PID, k.path},
				})
			}
		}
	}
	return out
}

// result reports whether tensors were computed: they are no inputs and no parameters, and not filled with
// a constant or with random numbers.
func result(s *snapshot.Sample) bool {
	fills := []string{"aten::rand", "aten::empty", "aten::zeros", "aten::ones", "aten::full", "aten::arange", "aten::normal"}
	return len(s.Stack) > 0 && slices.Contains([]string{stacks.Result, stacks.Activation, stacks.Temporary, stacks.Unknown}, s.Category) &&
		!slices.ContainsFunc(fills, func(f string) bool { return strings.HasPrefix(s.Operator, f) })
}

// freedBy counts the tensors of a process that were freed, by the stack that made them.
func freedBy(s *snapshot.Snapshot, pid int) map[**snapshot.Location]int64 {
	out := map[**snapshot.Location]int64{}
	for i := range s.Samples {
		if x := &s.Samples[i]; x.PID == pid && x.Kind == snapshot.Tensor && len(x.Stack) > 0 {
			out[&x.Stack[0]] += x.AllocObjects - x.InuseObjects
		}
	}
	return out
}

// collectedGraphs: a container that is no local variable of a running function keeps autograd graphs of
// many items.
func collectedGraphs(h snapshot.Heap) (out []Finding) {
	const many = 8
	for _, r := range holder.AlikeRetainers(h.Reading.Retainers) {
		graph := bytesOf(r.Graph)
		if r.Items < many || strings.Contains(r.Holder, ": local ") || !matters(graph, onGPU(h.Reading)) || graph < bytesOf(r.Retained)/2 {
			continue
		}
		out = append(out, Finding{
			Says:   fmt.Sprintf("`%s`, a %s of %s, keeps the autograd graphs of its items: %s.", r.Holder, r.Class, bytefmt.Counted(r.Items, "item"), bytefmt.Format(graph)),
			Bytes:  graph,
			object: object{h.PID, r.Holder},
			Change: "For logging, append x.item(), or x.detach().clone(), which does not wait for the GPU. To train on the sum, call backward() on each item as it is made, if they share no graph: gradients add up (under DDP, all but the last in no_sync()).",
		})
	}
	return out
}

// noBackward: autograd's graph keeps activations, and the whole recording has no gradient. Or the model is in
// eval mode, they were made since the last training step, and that is long ago. A program that ran out of
// memory may be a training in its first forward.
func noBackward(l *look) (out []Finding) {
	found := map[int]bool{}
	for _, r := range l.reads() {
		var since time.Time
		evaluates := false
		if l.trains(r.PID) {
			if since, evaluates = r.evaluates(); !evaluates {
				continue
			}
		} else if !r.inEval() && slices.ContainsFunc(l.end.Processes, func(p snapshot.Process) bool { return p.PID == r.PID && p.OutOfMemory > 0 }) {
			continue
		}
		var bytes, later int64
		var kept []*snapshot.Sample
		for _, k := range keeps(r.Reading, func(s *holder.Storage) bool { return s.Role == holder.Activation }) {
			bytes += k.bytes
			for _, s := range k.all {
				if a := r.made[s.Address]; a != nil && a.Time.After(since) {
					later += bytesOf(s.Bytes)
				}
			}
		}
		if evaluates && later < bytes/2 {
			continue
		}
		for _, u := range l.uses {
			if u.pid == r.PID {
				kept = append(kept, l.where(u, func(s *snapshot.Sample) bool { return tensor(s, stacks.Activation) })...)
			}
		}
		if all := onGPU(r.Reading); found[r.PID] || kept == nil || !matters(bytes, all) || bytes < all/100*leastOfPeak {
			continue
		}
		found[r.PID] = true
		out = append(out, Finding{
			Says:   fmt.Sprintf("The model runs with gradients on, but no backward pass has followed so far: autograd keeps %s of activations, most of them made%s.", bytefmt.Format(bytes), l.lines(kept)[0].at()),
			Bytes:  bytes,
			Change: "If it does not train, call it under torch.no_grad(). model.eval() is not enough.",
		})
	}
	return out
}

// trains reports whether a process ever made a gradient.
func (l *look) trains(pid int) bool {
	return slices.ContainsFunc(l.end.Samples, func(s snapshot.Sample) bool {
		return s.PID == pid && (s.Category == stacks.Gradient || stacks.Backward(s.Stack))
	})
}

// inEval reports whether modules are known, and none is in training mode.
func (r *read) inEval() bool {
	return len(r.Reading.Modules) > 0 && !slices.ContainsFunc(r.Reading.Modules, func(m holder.Module) bool { return m.Training })
}

// evaluates reports whether no module is in training mode, and what r.made has is held for longer than ten
// training steps take since the last of them ended. It returns when that was.
func (r *read) evaluates() (since time.Time, evaluates bool) {
	if !r.inEval() {
		return since, false
	}
	var took []time.Duration
	for i := range r.of.Steps {
		if r.of.Steps[i].PID != r.PID {
			continue
		}
		for _, step := range r.of.Steps[i].Last {
			took = append(took, step.Took)
			if end := step.Begin.Add(step.Took); end.After(since) {
				since = end
			}
		}
	}
	slices.Sort(took)
	now := r.of.Meta.Start.Add(r.of.Meta.Duration)
	return since, took != nil && now.Sub(since) > 10*took[len(took)/2]
}

// mostTrees bounds the trees of modules that are compared with each other.
const mostTrees = 100

// frozenCopies: two trees of modules have parameters of the same shapes, and those of one need no gradient.
func frozenCopies(h snapshot.Heap) (out []Finding) {
	trees, trained := map[string]map[shape]int{}, map[string]bool{}
	bytes := map[string]int64{}
	for i := range h.Reading.Storages {
		s := &h.Reading.Storages[i]
		if root := rootOf(s.Module); s.OnGPU() && s.Role == holder.Parameter && root != "" {
			keyed.Map(trees, root)[shapeOf(s)]++
			bytes[root] += bytesOf(s.Bytes)
			trained[root] = trained[root] || s.RequiresGrad
		}
	}
	names := slices.Sorted(maps.Keys(trees))
	names = names[:min(len(names), mostTrees)]
	for _, copied := range names {
		for _, model := range names {
			if trained[copied] || !trained[model] || len(trees[copied]) < 2 || !maps.Equal(trees[copied], trees[model]) || !matters(bytes[copied], onGPU(h.Reading)) {
				continue
			}
			out = append(out, Finding{
				Says:   fmt.Sprintf("`%s` has the same layers as `%s`, and needs no gradient: %s.", copied, model, bytefmt.Format(bytes[copied])),
				Bytes:  bytes[copied],
				object: object{h.PID, copied},
				Change: "If it is an average for evaluation, use torch.optim.swa_utils.AveragedModel(model, device=\"cpu\"), which copies the weights at each update. If it is a reference that never changes, compute its outputs once and drop it, or use bfloat16 (less exact).",
			})
			break
		}
	}
	return out
}

// stepBegan returns when the last training step began that had ended before a moment.
func stepBegan(s *snapshot.Snapshot, pid int, before time.Time) (begin time.Time) {
	for i := range s.Steps {
		if s.Steps[i].PID != pid {
			continue
		}
		for _, step := range s.Steps[i].Last {
			if step.Begin.Add(step.Took).Before(before) && step.Begin.After(begin) {
				begin = step.Begin
			}
		}
	}
	return begin
}

// heldBy finds what is reached through a hook, or a traceback.
func heldBy(what string) func(snapshot.Heap) []Finding {
	kinds := map[string]struct{ says, change string }{
		"hook": {"A hook keeps %[2]s in %[3]s: %[1]s.",
			"If it is your own hook, clear that container after each step, and if no loss uses it, store x.detach().cpu() in it. To remove the hook, call remove() of what its registration returned."},
		"traceback": {"A stored exception keeps the local variables of the functions that it passed through: %[2]s in %[3]s, %[1]s.",
			"In code, keep traceback.format_exc() instead of the exception. If you retry, do so after the except block. In a notebook: sys.last_exc = sys.last_value = sys.last_traceback = None."},
	}
	// What the marks lead to is of one hook, or of one exception.
	marks := map[string][]string{"hook": {"_hooks["}, "traceback": {".__traceback__", "sys.last_"}}[what]
	owner := func(path string) string {
		for _, m := range marks {
			if before, _, ok := strings.Cut(holder.Alike(path), m); ok {
				return before + m
			}
		}
		return ""
	}
	return func(h snapshot.Heap) (out []Finding) {
		var all []keep
		for _, k := range keeps(h.Reading, func(s *holder.Storage) bool {
			return (s.Role == holder.NoRole || s.Role == holder.Activation) && owner(s.Holder) != ""
		}) {
			i := slices.IndexFunc(all, func(x keep) bool { return owner(x.path) == owner(k.path) })
			if i < 0 {
				all = append(all, k)
				continue
			}
			all[i].bytes, all[i].storages, all[i].others = all[i].bytes+k.bytes, all[i].storages+k.storages, all[i].others+1
		}
		for _, k := range all {
			if !matters(k.bytes, onGPU(h.Reading)) {
				continue
			}
			names := "`" + k.path + "`"
			if k.others > 0 {
				names += fmt.Sprintf(" and %d more", k.others)
			}
			out = append(out, Finding{
				Says:  fmt.Sprintf(kinds[what].says, names, bytefmt.Format(k.bytes), bytefmt.Counted(k.storages, "tensor")),
				Bytes: k.bytes, Change: kinds[what].change, object: object{h.PID, k.path},
			})
		}
		return out
	}
}

// cycles: only objects that refer to each other hold it, through C++, where no collector looks.
func cycles(h snapshot.Heap) (out []Finding) {
	for _, k := range keeps(h.Reading, (*holder.Storage).Stuck) {
		if matters(k.bytes, onGPU(h.Reading)) {
			change := "Set .grad to None after each use, as optimizer.zero_grad() does, and before you drop the model. Without DDP or FSDP, torch.autograd.grad(loss, parameters, create_graph=True) avoids the cycle."
			switch {
			case strings.HasSuffix(k.path, holder.GradientCycle):
			case !strings.Contains(k.path, "Backward"): // not on what autograd made of a Function
				change = "Delete one of the references on that path when you no longer need what it leads to."
			default:
				change = "In forward, call ctx.save_for_backward(*tensors) instead of storing them on ctx, and read ctx.saved_tensors in backward."
			}
			out = append(out, Finding{
				Says:   fmt.Sprintf("%s in %s leaked: they are in a reference cycle that gc.collect() cannot free: %s.", bytefmt.Format(k.bytes), bytefmt.Counted(k.storages, "tensor"), strings.TrimPrefix(k.path, holder.CyclePrefix)),
				Bytes:  k.bytes,
				Change: change,
				object: object{h.PID, k.path},
			})
		}
	}
	return out
}

// waiting: the program freed the blocks, and the allocator may not reuse them yet. One or two wait where
// batches are copied ahead. Several are of one size: one line made them again and again.
func waiting(h snapshot.Heap) (out []Finding) {
	const many = 4
	var bytes, reserved int64
	blocks, alike := 0, map[uint64]int{}
	for i := range h.Reading.Allocators {
		a := &h.Reading.Allocators[i]
		reserved += bytesOf(a.Sum().Reserved)
		for j := range a.Blocks {
			if b := &a.Blocks[j]; b.State == holder.Waiting {
				bytes, blocks = bytes+bytesOf(b.Size), blocks+1
				alike[b.Size]++
			}
		}
	}
	most := 0
	for _, n := range alike {
		most = max(most, n)
	}
	if matters(bytes, reserved) && most >= many {
		out = append(out, Finding{
			Says:   fmt.Sprintf("%d tensors (%s) are freed, but PyTorch cannot reuse them yet: they wait for another stream (record_stream).", blocks, bytefmt.Format(bytes)),
			Bytes:  bytes,
			Change: "If NCCL's collectives did this, upgrade to PyTorch 2.8 (before it: TORCH_NCCL_AVOID_RECORD_STREAMS=1); if FSDP1 did, use fully_shard. If your code calls record_stream: before the last reference goes, call own.wait_stream(other), where own is the stream that made it, and only then leave out record_stream. If the CPU runs many steps ahead, synchronize every few steps.",
		})
	}
	return out
}

// A shape is what tensors of two copies have in common.
type shape struct {
	dimensions, dtype string
	bytes             uint64
}

func shapeOf(s *holder.Storage) shape { return shape{fmt.Sprint(s.Shape), s.DType, s.Bytes} }

// secondCopies: what one variable holds has the shapes of a model's parameters, most of them.
func secondCopies(h snapshot.Heap) (out []Finding) {
	model, others := map[shape]int{}, map[string]map[shape]int{}
	var all int64
	for i := range h.Reading.Storages {
		s := &h.Reading.Storages[i]
		if !s.OnGPU() {
			continue
		}
		of := shapeOf(s)
		switch root := rootOf(s.Holder); {
		case s.Role == holder.Parameter:
			model[of]++
			all += bytesOf(s.Bytes)
		case s.Role == holder.NoRole && root != "":
			keyed.Map(others, root)[of]++
		}
	}
	for root, shapes := range others {
		var bytes int64
		n := 0
		for of, count := range shapes {
			same := min(count, model[of])
			n, bytes = n+same, bytes+int64(same)*bytesOf(of.bytes)
		}
		if n >= 4 && bytes >= all/100*80 && matters(bytes, onGPU(h.Reading)) {
			out = append(out, Finding{
				Says:   fmt.Sprintf("`%s` holds %[3]s with the shapes of the model's parameters: %[2]s.", root, bytefmt.Format(bytes), bytefmt.Counted(n, "tensor")),
				Bytes:  bytes,
				object: object{h.PID, root},
				Change: "If it is a loaded checkpoint, use torch.load(..., map_location=\"cpu\"), and delete it after load_state_dict. If it is your best state so far, keep it on the CPU.",
			})
		}
	}
	sorting.Stable(out, func(a, b Finding) int { return strings.Compare(a.Says, b.Says) })
	return out
}

// rootOf returns the first part of a path: the variable, with the function that has it.
func rootOf(path string) string {
	parts := holder.Segments(path)
	switch {
	case len(parts) == 0 || strings.HasPrefix(path, holder.CyclePrefix):
		return ""
	case len(parts) > 1 && strings.HasPrefix(parts[1], "local "):
		return parts[0] + ": " + parts[1]
	}
	return parts[0]
}
