package stacks

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

func TestOwn(t *testing.T) {
	executable := func(function, file string, line int) *snapshot.Location {
		return &snapshot.Location{Address: 1, Mapping: &snapshot.Mapping{Path: "/opt/app"}, Lines: []snapshot.Line{{Function: function, File: file, Line: line}}}
	}
	unnamed := func(address uint64) *snapshot.Location {
		return &snapshot.Location{Address: address, Lines: []snapshot.Line{{Function: snapshot.NotNamed}}}
	}
	python := frames("step # /me/train.py")[0]
	for _, c := range []struct {
		name  string
		stack []*snapshot.Location
		want  string
		own   bool
	}{
		{"library frames are left out", frames("x", "empty @ "+site+"torch/lib/libtorch.so", "forward # "+site+"torch/nn/linear.py", "step # /me/train.py", "run # /usr/lib/python3.12/runpy.py", "<module> # /me/train.py", "<module> # <frozen runpy>"), "step <module>", true},
		{"none of its own", frames("x", "forward # "+site+"torch/nn/linear.py", "<module> # "+site+"tool/__main__.py"), "forward <module>", false},
		{"started by a package's command", frames("x", "forward # "+site+"torch/nn/linear.py", "<module> # /venv/bin/torchrun"), "forward <module>", false},
		{"a program without a suffix", frames("x", "step # /me/bin/train", "<module> # /me/bin/train"), "step", true},
		{"started by multiprocessing", frames("x", "forward # "+site+"torch/nn/linear.py", "_main # /usr/lib/python3.12/multiprocessing/spawn.py", "<module> # <string>"), "forward _main <module>", false},
		{"python -c", frames("x", "forward # "+site+"torch/nn/linear.py", "<module> # <string>"), "<module>", true},
		{"generated code", frames("x", "call # /tmp/torchinductor_me/ab/cab.py", "forward # <eval_with_key>.1", "step # /me/train.py"), "step", true},
		{"methods of a dataclass", frames("x", "__post_init__ # "+site+"transformers/training_args.py", "__create_fn__.<locals>.__init__ # <string>", "<module> # /me/train.py"), "<module>", true},
		{"methods of a dataclass, before 3.11", frames("x", "__post_init__ # "+site+"transformers/training_args.py", "__init__ # <string>", "<module> # /me/train.py"), "<module>", true},
		{"methods by attrs", frames("x", "build # "+site+"net/build.py", "__init__ # <attrs generated __init__ net.Config>", "<module> # /me/train.py"), "<module>", true},
		{"an executable with sources", []*snapshot.Location{executable("cudaMalloc", "", 0), executable("copy", "/usr/include/vector", 3), executable("load", "/me/app.cc", 9), executable("_start", "", 0)}, "load", true},
		{"an executable without", []*snapshot.Location{executable("cudaMalloc", "", 0), executable("load", "", 0), executable("main", "", 0)}, "load main", true},
		{"Python in an executable", []*snapshot.Location{executable("load", "/me/app.cc", 9), frames("forward # " + site + "torch/nn/linear.py")[0]}, "forward", false},
		{"native frames without names yet", []*snapshot.Location{unnamed(1), python}, "step", true},
		{"a frame that was lost", []*snapshot.Location{unnamed(0), python}, "[not named yet] step", false},
		{"a frame that was lost further out", []*snapshot.Location{python, unnamed(0)}, "step [not named yet]", true},
		{"names of sources yet to come", []*snapshot.Location{unnamed(1), executable("load", "/me/app.cc", 9)}, "[not named yet] load", false},
		{"names yet to come further out", []*snapshot.Location{executable("load", "/me/app.cc", 9), unnamed(1)}, "load", true},
		{"names of functions yet to come", []*snapshot.Location{unnamed(1), executable("load", "", 0)}, "[not named yet] load", false},
		{"libraries alone", frames("x", "apply @ "+site+"torch/lib/libtorch.so", "clone3 @ "+libC), "", false},
		{"no stack", nil, "", false},
	} {
		lines, own := Own(c.stack)
		var names []string
		for _, l := range lines {
			names = append(names, l.Function)
		}
		if got := strings.Join(names, " "); got != c.want || own != c.own {
			t.Errorf("%s: %q, own %t; want %q, %t", c.name, got, own, c.want, c.own)
		}
	}
}
