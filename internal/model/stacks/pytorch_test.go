package stacks

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// real returns the stacks of testdata/pytorch.txt by name: as traced with PyTorch
// 2.11 and CPython 3.12, of one transformer in training. Frames that look the same
// are one location.
func real(t *testing.T) map[string][]*snapshot.Location {
	t.Helper()
	text, err := os.ReadFile("testdata/pytorch.txt")
	if err != nil {
		t.Fatal(err)
	}
	same := map[string]*snapshot.Location{}
	out := map[string][]*snapshot.Location{}
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		rows := strings.Split(block, "\n")
		for _, row := range rows[1:] {
			if same[row] == nil {
				same[row] = located(t, row, uint64(0x1000+len(same)))
			}
			out[strings.TrimPrefix(rows[0], "# ")] = append(out[strings.TrimPrefix(rows[0], "# ")], same[row])
		}
	}
	return out
}

// located makes a location out of "function @ file" or "function # file:line".
func located(t *testing.T, row string, address uint64) *snapshot.Location {
	t.Helper()
	if _, _, python := strings.Cut(row, " # "); !python {
		l := frames(row)[0]
		l.Address = address
		return l
	}
	i := strings.LastIndexByte(row, ':')
	line, err := strconv.Atoi(row[i+1:])
	if err != nil {
		t.Fatal(err)
	}
	l := frames(row[:i])[0]
	l.Lines[0].Line = line
	return l
}

func TestOperator(t *testing.T) {
	all := real(t)
	for name, want := range map[string][]string{ // the operator, and all from the innermost on
		"module to":           {"aten::to", "aten::empty_strided aten::_to_copy aten::to"},
		"randint":             {"aten::randint", "aten::empty aten::randint"},
		"embedding":           {"aten::embedding", "aten::resize_ aten::index_select aten::embedding"},
		"reshape in linear":   {"aten::linear", "aten::empty aten::empty_like aten::clone aten::reshape aten::matmul aten::linear"},
		"workspace":           {"aten::linear", "aten::mm aten::matmul aten::linear"},
		"dropout":             {"aten::dropout", "aten::empty_strided aten::empty_like aten::native_dropout aten::dropout"},
		"add":                 {"aten::add", "aten::add"},
		"log_softmax":         {"aten::cross_entropy_loss", "aten::_log_softmax aten::log_softmax aten::cross_entropy_loss"},
		"ones_like":           {"aten::ones_like", "aten::empty_strided aten::empty_like aten::ones_like"},
		"weight gradient":     {"AddmmBackward0", "aten::mm AddmmBackward0"},
		"bias gradient":       {"aten::sum", "aten::sum"},
		"layer norm backward": {"NativeLayerNormBackward0", "aten::empty aten::native_layer_norm_backward NativeLayerNormBackward0"},
		"embedding backward":  {"EmbeddingBackward0", "aten::empty aten::zeros aten::embedding_dense_backward aten::embedding_backward EmbeddingBackward0"},
		"optimizer state":     {"aten::zeros_like", "aten::empty_strided aten::empty_like aten::zeros_like"},
		"optimizer sqrt":      {"aten::sqrt", "aten::sqrt"},
	} {
		if got := Operator(all[name]); got != want[0] {
			t.Errorf("%s: %q, want %q", name, got, want[0])
		}
		if got := strings.Join(Operators(all[name]), " "); got != want[1] {
			t.Errorf("%s: all %q, want %q", name, got, want[1])
		}
	}
}

const (
	torch = "# " + site + "torch/"
	cpu   = " @ " + site + "torch/lib/libtorch_cpu.so"
	run   = "torch::autograd::Node::operator()" + cpu
	eval  = "torch::autograd::Engine::evaluate_function" + cpu
)

func TestOperatorOfOther(t *testing.T) {
	for name, c := range map[string]struct {
		stack    []*snapshot.Location
		want     string
		wantAll  string
		callerIs string // the first frame that called it
	}{
		"none":       {frames("malloc @ /lib/liballoc.so", "main @ /bin/app"), "", "", "malloc"},
		"empty":      {nil, "", "", ""},
		"no symbols": {frames("? @ /lib/liballoc.so", "f # a.py"), "", "", "?"},
		"a name of a function alone": {frames("at::_ops::mm::schema"+cpu, "at::_ops::mm"+cpu, "f # a.py"), "", "",
			"at::_ops::mm::schema"},
		"C++ program": {frames("at::_ops::empty_like::call"+cpu, "at::native::zeros_like"+cpu, "at::_ops::zeros_like::call"+cpu, "main @ /bin/app"),
			"aten::zeros_like", "aten::empty_like aten::zeros_like", "main"},
		"an operator whose implementation is in Python": {frames("empty_strided @ /x.so", "lowered # a.py", "at::_ops::mm::call"+cpu, "f # b.py"),
			"aten::mm", "aten::mm", "f"},
		"Python between two": {frames("at::_ops::mm::call"+cpu, "inner # a.py", "at::_ops::mm::call"+cpu, "f # b.py"),
			"aten::mm", "aten::mm aten::mm", "inner"},
		"a function of Python's backward": {frames("at::_ops::mm::call"+cpu, "Scaled.backward # a.py", "BackwardCFunction.apply "+torch+"autograd/function.py",
			"torch::autograd::PyNode::apply"+cpu, run, eval), "aten::mm", "aten::mm ScaledBackward", "Scaled.backward"},
		"generated code in Python's backward": {frames("_empty_strided_cuda @ /x.so", "call # /tmp/torchinductor_me/ab/cab.py", "Tower.<locals>.CompiledFunction.backward # a.py",
			"BackwardCFunction.apply "+torch+"autograd/function.py", "torch::autograd::PyNode::apply"+cpu, run, eval),
			"CompiledFunctionBackward", "CompiledFunctionBackward", "torch::autograd::Node::operator()"},
		"a Python before 3.11 does not name the class": {frames("empty @ /x.so", "backward # a.py", "apply "+torch+"autograd/function.py",
			"torch::autograd::PyNode::apply"+cpu, run, eval), "", "", "empty"},
		"a template's node": {frames("at::_ops::mm::call"+cpu, "mine::backward @ /x.so", "torch::autograd::CppNode::apply @ /x.so", run, eval),
			"aten::mm", "aten::mm", "mine::backward"},
		"an apply that is no node's": {frames("at::_ops::mm::call"+cpu, "torch::autograd::Function::apply @ /x.so", "main @ /x"),
			"aten::mm", "aten::mm", "torch::autograd::Function::apply"},
		"accumulation": {frames("at::_ops::clone::call"+cpu, "torch::autograd::AccumulateGrad::apply"+cpu, run, eval),
			"AccumulateGrad", "aten::clone AccumulateGrad", "torch::autograd::Node::operator()"},
	} {
		got, by := Called(c.stack)
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if all := strings.Join(Operators(c.stack), " "); all != c.wantAll {
			t.Errorf("%s: all %q, want %q", name, all, c.wantAll)
		}
		if c.callerIs != "" && (len(by) == 0 || by[0].Lines[0].Function != c.callerIs) {
			t.Errorf("%s: called by %s", name, show(by))
		}
	}
}

// One location may be several functions, of which the innermost is inlined.
func TestOperatorInlined(t *testing.T) {
	stack := frames("at::_ops::empty_memory_format::call"+cpu, "f # a.py")
	stack[0].Lines = append(stack[0].Lines, snapshot.Line{Function: "at::_ops::zeros::call"})
	if got := Operators(stack); !slices.Equal(got, []string{"aten::empty", "aten::zeros"}) {
		t.Errorf("%q", got)
	}
}

func TestOperatorName(t *testing.T) {
	for generated, want := range map[string]string{
		"mm": "mm", "add_Tensor": "add", "add__Tensor": "add_", "add_out": "add", "sum_dim_IntList": "sum",
		"to_dtype_layout": "to", "empty_memory_format": "empty", "randint_low_generator_out": "randint",
		"nll_loss_nd": "nll_loss_nd", "split_with_sizes": "split_with_sizes", "split_sizes": "split",
		"take_along_dim_out": "take_along_dim", "_log_softmax_backward_data": "_log_softmax_backward_data",
		"index_reduce_out": "index_reduce", "index_reduce_": "index_reduce_", "_foreach_add__ScalarList": "_foreach_add_",
		"to_sparse_csr": "to_sparse_csr", "a_new_one_strangely": "a_new_one_strangely", "": "", "out": "out", "_out": "_out",
	} {
		if got := operatorName(generated); got != want {
			t.Errorf("%s: %s, want %s", generated, got, want)
		}
	}
}

func TestModule(t *testing.T) {
	all := real(t)
	for name, want := range map[string]string{
		"module to": "", "randint": "", "log_softmax": "", "ones_like": "", "weight gradient": "", "optimizer sqrt": "",
		"embedding":         "Net/Embedding",
		"reshape in linear": "Net/TransformerEncoder/TransformerEncoderLayer/MultiheadAttention",
		"dropout":           "Net/TransformerEncoder/TransformerEncoderLayer/Dropout",
		"add":               "Net/TransformerEncoder/TransformerEncoderLayer",
	} {
		if got := Module(all[name]); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestModuleOfOther(t *testing.T) {
	const (
		module  = torch + "nn/modules/module.py"
		impl    = "Module._call_impl " + module
		wrapped = "Module._wrapped_call_impl " + module
		linear  = torch + "nn/modules/linear.py"
		native  = "at::_ops::mm::call" + cpu
	)
	for name, c := range map[string]struct {
		stack []string
		want  string
	}{
		"torch in a folder of that name": {[]string{"Linear.forward " + linear, "Module._call_impl # /opt/torch/lib/python3.12/site-packages/torch/nn/modules/module.py"}, "Linear"},
		"a decorated forward":            {[]string{native, "Llama.forward # llama.py", "can_return.<locals>.wrapper # generic.py", impl, wrapped}, "Llama"},
		"a forward of no module": {[]string{native, "Scale.forward # scale.py", "Function.apply " + torch + "autograd/function.py", "Net.forward # net.py", impl, wrapped,
			"main # net.py"}, "Net"},
		"a forward called as a method":  {[]string{native, "Head.forward # net.py", "Net.forward # net.py", impl}, "Net"},
		"a forward that nobody called":  {[]string{native, "Net.forward # net.py", "main # net.py"}, ""},
		"hooks":                         {[]string{native, "Linear.forward " + linear, "Module._call_impl.<locals>.inner " + module, impl, wrapped}, "Linear"},
		"in a hook":                     {[]string{native, "gather # fsdp.py", impl, wrapped, "Net.forward # net.py", impl, wrapped}, "Net"},
		"a class in a function":         {[]string{native, "build.<locals>.Net.forward # net.py", impl, wrapped}, "Net"},
		"a function as forward":         {[]string{native, "hook.<locals>.forward # /lib/hooks.py", impl, "Net.forward # net.py", impl}, "Net/hooks.py"},
		"a Python before 3.11":          {[]string{native, "forward " + linear, "_call_impl " + module, "forward # /home/me/net.py", "_call_impl " + module, "main # net.py"}, "net.py/linear.py"},
		"CPython's own frames between":  {[]string{native, "Linear.forward " + linear, "<interpreter trampoline> # <shim>", impl}, "Linear"},
		"a checkpoint runs it again":    {[]string{native, "Linear.forward " + linear, impl, wrapped, "unpack_hook " + torch + "utils/checkpoint.py", eval, "Net.forward # net.py", impl}, "Linear"},
		"the backward pass in a module": {[]string{native, eval, "Tensor.backward " + torch + "_tensor.py", "Net.forward # net.py", impl}, ""},
		"another _call_impl":            {[]string{native, "Net.forward # net.py", "Module._call_impl # mine/module.py"}, ""},
		"no stack":                      {nil, ""},
	} {
		if got := Module(frames(c.stack...)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
