package render

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// stackOf puts each line in a location of its own, but for the last two.
func stackOf(lines []snapshot.Line) (stack []*snapshot.Location) {
	last := len(lines) - 2
	for _, l := range lines[:last] {
		stack = append(stack, &snapshot.Location{Lines: []snapshot.Line{l}})
	}
	return append(stack, &snapshot.Location{Lines: lines[last:]})
}

func TestTelling(t *testing.T) {
	stack := stackOf([]snapshot.Line{
		{Function: "cuMemAlloc_v2"},
		{Function: "cudaMalloc"},
		{Function: "c10::cuda::malloc(unsigned long)", File: "/pytorch/c10/alloc.cpp", Line: 3},
		{Function: "libtorch.so+0x1234"},
		{Function: "at::native::empty_cuda<float>(c10::ArrayRef<long>)"},
		{Function: "Linear.forward", File: "/v/site-packages/torch/linear.py", Line: 125},
		{Function: "forward", File: "/home/me/train.py", Line: 41},
		{Function: "<module>", File: "/home/me/train.py", Line: 102},
		{Function: "_PyEval_EvalFrameDefault", File: "/python/ceval.c", Line: 1},
		{Function: "main"},
	})
	for n, want := range map[int]string{
		0:  "",
		1:  "forward train.py:41",
		2:  "Linear.forward linear.py:125 < forward train.py:41",
		3:  "Linear.forward linear.py:125 < forward train.py:41 < <module> train.py:102",
		99: "Linear.forward linear.py:125 < forward train.py:41 < <module> train.py:102",
	} {
		if got := Brief(stack, n); got != want {
			t.Errorf("Telling(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestTellingPlumbing(t *testing.T) {
	stack := stackOf([]snapshot.Line{{Function: "cuMemAlloc_v2"}, {Function: "lib.so+0x12"}, {Function: "main", File: "a.c", Line: 3}, {Function: "_start"}})
	if got, want := Brief(stack, 5), "main a.c:3"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Brief(stack[:2], 5), "cuMemAlloc_v2 < lib.so+0x12"; got != want {
		t.Errorf("nothing else: got %q, want %q", got, want)
	}
}

// A tensor of the backward pass is named by autograd's node, or else by the operator.
func TestTellingOfTensor(t *testing.T) {
	inside := []snapshot.Line{{Function: "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc"}, {Function: "at::detail::empty_cuda"}}
	handle := append([]snapshot.Line{{Function: "cuMemAlloc_v2"}, {Function: "cublasCreate_v2"}}, inside...)
	node := []snapshot.Line{{Function: "at::_ops::mm::call"}, {Function: "torch::autograd::generated::MmBackward0::apply"}, {Function: "torch::autograd::Node::operator()"}}
	engine := []snapshot.Line{{Function: "torch::autograd::Engine::evaluate_function"}, {Function: "start_thread"}}
	for want, lines := range map[string][]snapshot.Line{
		"MmBackward0 < backward pass":                   slices.Concat(inside, node, engine),
		"cublasCreate_v2 < MmBackward0 < backward pass": slices.Concat(handle, node, engine),
		"aten::mm < backward pass":                      slices.Concat(inside, node[:1], engine),
		"aten::mm":                                      slices.Concat(inside, node[:1], engine[1:]),
	} {
		var stack []*snapshot.Location
		for _, l := range lines {
			stack = append(stack, &snapshot.Location{Lines: []snapshot.Line{l}, Address: 1})
		}
		if got := Brief(stack, 4); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestName(t *testing.T) {
	for in, want := range map[string]string{
		"<module>":   "<module>",
		"ns::f(int)": "ns::f",
		"ns::(anonymous namespace)::f<a<b>>(c<d>)":       "ns::f",
		"std::ostream& operator<< <char>(std::ostream&)": "std::ostream& operator<< <char>(std::ostream&)",
		"a::b(":        "a::b(",
		"Foo.<lambda>": "Foo.<lambda>",
	} {
		if got := Name(&snapshot.Line{Function: in}); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

func TestShortPaths(t *testing.T) {
	got := ShortPaths([]string{"/me/train/loop.py", "/me/train/loop.py", "/a/x/data.py", "/b/x/data.py", "x/data.py", "/data.py", "data.py", "<string>"})
	want := map[string]string{"/me/train/loop.py": "train/loop.py", "/a/x/data.py": "a/x/data.py", "/b/x/data.py": "b/x/data.py", "x/data.py": "x/data.py",
		"/data.py": "/data.py", "data.py": "data.py", "<string>": "<string>"}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlace(t *testing.T) {
	for want, line := range map[string]snapshot.Line{
		"train/loop.py:88 step":   {Function: "step", Line: 88},
		"train/loop.py app::load": {Function: "app::load(int)"},
	} {
		if got := Place(&line, "train/loop.py"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A paragraph loses nothing: what a note or a loss says last is often what matters.
func TestPageWraps(t *testing.T) {
	for in, want := range map[string][]string{
		"short":                {"short"},
		"exactly twenty wide.": {"exactly twenty wide."},
		"  3 events dropped because the ring was full (events_ring_full)": {"  3 events dropped", "    because the ring", "    was full", "    (events_ring_ful", "    l)"},
		"abcdefghijklmnopqrstuvwxyz":                                      {"abcdefghijklmnopqrst", "  uvwxyz"},
		"äöü äöü äöü äöü äöü äöü äöü":                                     {"äöü äöü äöü äöü äöü", "  äöü äöü"},
		"": {""},
	} {
		var b strings.Builder
		p := NewPage(&b, 20, false)
		p.Line("%s", in)
		p.Flush("write page")
		if got := strings.TrimSuffix(b.String(), "\n"); got != strings.Join(want, "\n") {
			t.Errorf("%q became\n%s\nwant\n%s", in, got, strings.Join(want, "\n"))
		}
	}
	for width := range 30 { // it ends, at any width
		if len(Wrap(strings.Repeat(" ", 40)+"words of a line", width+1, 2)) == 0 {
			t.Errorf("nothing at width %d", width+1)
		}
	}
}

func TestPageColor(t *testing.T) {
	var b strings.Builder
	p := NewPage(&b, 0, true)
	p.Heading("Lost \x1b[2J")
	p.Flush("write page")
	if got, want := b.String(), "\x1b[1mLost \\x1b[2J\x1b[0m\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

type failing struct{}

var errFull = errors.New("disk full")

func (failing) Write([]byte) (int, error) { return 0, errFull }

func TestPageError(t *testing.T) {
	p := NewPage(failing{}, 80, false)
	for range 1000 {
		p.Line("some text that fills the buffer")
	}
	if err := p.Flush("write page"); !errors.Is(err, errFull) {
		t.Errorf("Flush returned %v, want %v", err, errFull)
	}
}
