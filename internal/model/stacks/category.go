package stacks

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Categories of tensors.
const (
	Parameter          = "parameter"
	Gradient           = "gradient"
	Bucket             = "buckets (DDP)"
	OptimizerState     = "optimizer_state"
	OptimizerTemporary = "optimizer temporaries"
	Activation         = "activation"
	Input              = "input"
	Loaded             = "loaded"
	Result             = "result"
	Temporary          = "temporary"
	Workspace          = "workspace (cuBLAS)"
	ConvWorkspace      = "workspace (cuDNN)"
	Unknown            = "unknown"
)

// A Use is the part of a tensor's stack that shows the tensor's purpose.
type Use struct {
	stack    []*snapshot.Location
	operator string
	caller   []*snapshot.Location // of the operator, or of the code that made it without one
	converts bool                 // to another type of numbers
	scope    scope
}

// A Fate counts how the tensors of one stack ended.
type Fate struct {
	Live    int64 // not freed
	Crossed int64 // freed by another thread than the one that made them
	Stayed  int64 // freed by the thread that made them
	// After is of the last tensor that the thread had made when it last freed one of
	// these, nil where that was the freed one.
	After *Use
}

// UseOf returns the use of a stack, leaf first and not folded.
func UseOf(stack []*snapshot.Location) Use {
	u := Use{stack: stack, scope: scopeOf(stack)}
	u.operator, u.caller = Called(stack)
	if u.operator == "" {
		// Generated code makes what it needs on the lines of one function.
		u.caller = stack[1+slices.IndexFunc(stack, interpreted):]
	}
	u.converts = slices.ContainsFunc(stack[:len(stack)-len(u.caller)], func(l *snapshot.Location) bool { return nativePrefix(l, "at::_ops::to_dtype::") })
	return u
}

// Category returns the category of tensors that were made at a stack and ended as fate
// says. It is a guess from outside of the program: see Rules.
func (u *Use) Category(fate Fate) string {
	if u.unnamed() || fate.After != nil && fate.After.unnamed() {
		return Unknown
	}
	for i := range Rules {
		if Rules[i].holds(u, &fate) {
			return Rules[i].Category
		}
	}
	return Unknown
}

// unnamed reports whether a name that would decide is still to come.
func (u *Use) unnamed() bool { return u.operator == snapshot.NotNamed || u.scope == unnamed }

// A Rule is a condition for a category.
type Rule struct {
	Category string
	What     string // as the end of a clause: a tensor that was ...
	holds    func(*Use, *Fate) bool
}

// Rules are in order of precedence: a tensor is of the first category that holds.
// The frame nearest to an allocation decides its scope.
var Rules = []Rule{
	{Workspace, "made as a workspace that cuBLAS keeps",
		in(workspace)},
	{ConvWorkspace, "made as a workspace of a convolution",
		in(convolution)},
	{Loaded, "read from a file by torch.load",
		in(reading)},
	{Parameter, "made while a module is built, moved, converted or loaded, or gathered by FSDP",
		in(loading)},
	{OptimizerState, "made where an optimizer sets up or loads its state, or made in its step and mostly kept",
		func(u *Use, f *Fate) bool {
			return u.scope == state || u.scope == step && f.Live > f.Crossed+f.Stayed
		}},
	{OptimizerTemporary, "made in an optimizer's step, and not kept",
		in(step)},
	{Temporary, "made while gradients are clipped or unscaled",
		in(clipping)},
	{Bucket, "made by DDP to reduce gradients",
		in(reducer)},
	{Gradient, "made where the backward pass begins, where a gradient is accumulated, or for the buckets of FSDP",
		in(accumulation)},
	{Temporary, "made and freed within one call of an operator (not in the backward pass)",
		func(u *Use, f *Fate) bool {
			return u.scope != backward && f.Stayed > f.Crossed && f.Live <= f.Stayed && u.within(f)
		}},
	{Gradient, "made in the backward pass, and freed by another thread (that of zero_grad), or mostly not freed yet",
		func(u *Use, f *Fate) bool {
			return u.scope == backward && (100*f.Crossed > f.Stayed || f.Live > f.Stayed)
		}},
	{Temporary, "made in the backward pass, and freed by autograd's own thread",
		in(backward)},
	{Activation, "made in the forward of a module or of an autograd function, or where checkpointing runs a forward again",
		in(forward)},
	{Input, "made or copied to the GPU by the program itself, outside all of the above",
		func(u *Use, _ *Fate) bool { return creates(u.operator) && !u.converts }},
	{Activation, "computed by the program itself, and freed by autograd's thread, which had saved it for the backward pass",
		func(u *Use, f *Fate) bool { return u.operator != "" && 100*f.Crossed > f.Stayed }},
	{Temporary, "computed by the program itself, and freed by the thread that made it",
		func(u *Use, f *Fate) bool { return u.operator != "" && f.Stayed > 0 }},
	{Result, "computed by the program itself, and not freed so far",
		func(u *Use, _ *Fate) bool { return u.operator != "" }},
}

func in(scopes ...scope) func(*Use, *Fate) bool {
	return func(u *Use, _ *Fate) bool { return slices.Contains(scopes, u.scope) }
}

// within reports whether tensors ended in the call of the operator that made them. Its
// thread had made nothing since, or something in the same call. Another one of the same
// stack is of another call.
func (u *Use) within(f *Fate) bool {
	after := f.After
	if u.operator == "" && len(u.caller) == 0 {
		return false
	}
	return after == nil || after.operator == u.operator && slices.Equal(after.caller, u.caller) && !slices.Equal(after.stack, u.stack)
}

// creates reports whether an operator makes a tensor of no others, or copies one from
// elsewhere.
func creates(operator string) bool {
	name, ok := strings.CutPrefix(operator, "aten::")
	return ok && (creators[name] || strings.HasPrefix(name, "new_") || strings.HasSuffix(name, "_like"))
}

var creators = words(`
	_to_copy to copy_ lift_fresh _pin_memory pin_memory from_file scalar_tensor tensor
	empty empty_strided empty_permuted empty_quantized full zeros ones eye arange range linspace logspace
	rand randn randint randperm normal poisson bernoulli tril_indices triu_indices
	sparse_coo_tensor sparse_csr_tensor sparse_compressed_tensor complex
`)

// A scope is the part of a training that an allocation is in.
type scope uint8

const (
	elsewhere scope = iota
	workspace
	convolution
	reading
	loading
	state
	step
	clipping
	reducer
	accumulation
	backward
	forward
	unnamed // by a frame that has no name yet
)

// scopeOf returns the scope of the frame nearest to the leaf that has one.
func scopeOf(stack []*snapshot.Location) scope {
	closure := false
	for _, l := range stack {
		if !l.Named() {
			return unnamed
		}
		s := frameScope(l)
		if closure && s == step {
			return elsewhere
		}
		if s != elsewhere {
			return s
		}
		if interpreted(l) {
			// An optimizer calls the program's closure for the loss.
			_, name := method(l)
			closure = closure || name == "closure"
		}
	}
	return elsewhere
}

func frameScope(l *snapshot.Location) scope {
	if !interpreted(l) {
		for _, n := range nativeScopes {
			if nativePrefix(l, n.prefix) && (n.part == "" || slices.ContainsFunc(l.Lines, func(x snapshot.Line) bool { return strings.Contains(x.Function, n.part) })) {
				return n.scope
			}
		}
		return elsewhere
	}
	class, name := method(l)
	if class == "Function" && name == "apply" && inTorch(l, "autograd/function.py") { // BackwardCFunction's runs the backward
		return forward
	}
	for i := range pythonScopes {
		if pythonScopes[i].covers(l, name) {
			return pythonScopes[i].scope
		}
	}
	return elsewhere
}

// nativeScopes are by the beginning of functions' names, and a part of them.
var nativeScopes = []struct {
	scope        scope
	prefix, part string
}{
	{workspace, "at::cuda::", "Workspace"},
	{convolution, "at::native::", "::run_conv_plan"},
	{convolution, "at::native::", "::generate_and_filter_plans"},
	{accumulation, "torch::autograd::AccumulateGrad::", ""},
	{reducer, "c10d::Reducer::", ""},
	{backward, "torch::autograd::Engine::", ""},
}

// A pythonScope is of the functions with names, nil for all, of files: of the package
// torch, or of any where file is "".
type pythonScope struct {
	scope scope
	file  string // as for inTorch
	names map[string]bool
}

// pythonScopes are in order of precedence.
var pythonScopes = []pythonScope{
	{state, "optim/", words("_init_group load_state_dict _process_value_according_to_param_policy")},
	{state, "", words("init_state")},
	{reading, "serialization.py", nil},
	{loading, "", words("from_pretrained load_state_dict reset_parameters")},
	{loading, moduleFile, words("_apply _load_from_state_dict")},
	{forward, moduleFile, moduleCalls},
	{loading, "nn/init.py", nil},
	{loading, "nn/parameter.py", nil},
	{loading, "nn/modules/", words("__init__ reset_parameters _reset_parameters reset_running_stats")},
	{loading, "distributed/fsdp/", words("unshard _unshard foreach_all_gather foreach_all_gather_copy_out init_all_gather_outputs alloc_all_gather_outputs _init_sharded_param _alloc_padded_unsharded_flat_param")},
	{reducer, "nn/parallel/distributed.py", words("_ddp_init_helper")},
	{accumulation, "distributed/fsdp/", words("foreach_reduce reduce_grad post_backward _post_backward_hook _reduce_grad")},
	{elsewhere, "optim/swa_utils.py", nil},
	{elsewhere, "optim/lr_scheduler.py", nil},
	{step, "optim/", nil},
	{clipping, "nn/utils/clip_grad.py", nil},
	{clipping, "amp/grad_scaler.py", nil},
	{clipping, "cuda/amp/grad_scaler.py", nil},
	{accumulation, "autograd/__init__.py", words("backward _make_grads grad")},
	{forward, "utils/checkpoint.py", nil},
}

func (p *pythonScope) covers(l *snapshot.Location, name string) bool {
	return (p.file == "" || inTorch(l, p.file)) && (p.names == nil || p.names[name])
}
