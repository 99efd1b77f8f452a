package holder_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

func TestSegments(t *testing.T) {
	for path, want := range map[string][]string{
		"":                                   nil,
		"x":                                  {"x"},
		"model.layers[3].weight":             {"model", ".layers", "[3]", ".weight"},
		`cache.kv["a.b[0]"][1]`:              {"cache", ".kv", `["a.b[0]"]`, "[1]"},
		`opt.state[m.h[3].w]["exp"]`:         {"opt", ".state", "[m.h[3].w]", `["exp"]`},
		"f() in t.py:88: local x.grad":       {"f() in t.py:88", "local x", ".grad"},
		"f() in t.py:8: stack [0]":           {"f() in t.py:8", "stack ", "[0]"},
		`thread "a.b": local batch[0]`:       {`thread "a.b"`, "local batch", "[0]"},
		`thread "a.b": tl.x["y"]`:            {`thread "a.b"`, "tl", ".x", `["y"]`},
		`task "a.b": f() in t.py:8: local x`: {`task "a.b": f() in t.py:8`, "local x"},
		`context variable v["x"]`:            {"context variable v", `["x"]`},
		"reference cycle: Scale.x (class Scale, scale.py:12)": {"reference cycle: Scale", ".x (class Scale, scale.py:12)"},
		"reference cycle: Parameter" + holder.GradientCycle:   {"reference cycle: Parameter" + holder.GradientCycle},
		"h.grad_fn (graph of 1,200 nodes)":                    {"h", ".grad_fn (graph of 1,200 nodes)"},
		`cache["it\"s].[x"].y`:                                {"cache", `["it\"s].[x"]`, ".y"},
		"unbalanced]].x[":                                     {"unbalanced]]", ".x", "["},
		`open["quote`:                                         {"open", `["quote`},
		"f.<closure>.x":                                       {"f", ".<closure>", ".x"},
		"[held by C++ alone]":                                 {"[held by C++ alone]"},
		"[held by C++ alone, in a CUDA graph's pool]":         {"[held by C++ alone, in a CUDA graph's pool]"},
		"[free in CuPy's pool]":                               {"[free in CuPy's pool]"},
	} {
		got := holder.Segments(path)
		if !slices.Equal(got, want) {
			t.Errorf("Segments(%q) = %q, want %q", path, got, want)
		}
		if n := len(strings.Join(got, "")); n != len(path) && n != len(path)-len(": ") {
			t.Errorf("Segments(%q) lose text: %q", path, got)
		}
	}
}

func TestDotted(t *testing.T) {
	for path, want := range map[string]string{
		"":                            "",
		"model.layers[3].0.weight":    "model.layers.3.0.weight",
		"nets[0][12].bias":            "nets.0.12.bias",
		`kv["a[1]"].mlp[0].weight`:    `kv["a[1]"].mlp.0.weight`,
		"f() in t.py:8: local m[1].w": "f() in t.py:8: local m.1.w",
		"x[":                          "x[",
	} {
		if got := holder.Dotted(path); got != want {
			t.Errorf("Dotted(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestAlike(t *testing.T) {
	for path, want := range map[string]string{
		"":                                  "",
		"x[]":                               "x[]",
		"losses[12]":                        "losses[*]",
		"losses[-1].grad":                   "losses[*].grad",
		"m.h[3].w[x[12]]":                   "m.h[*].w[x[*]]",
		`kv["[12]"][4]`:                     `kv["[12]"][*]`,
		"a[1][2]":                           "a[*][*]",
		"a[12":                              "a[12",
		"a[1x]":                             "a[1x]",
		`opt.state[m.h[3].w]["exp"]`:        `opt.state[m.h[*].w]["exp"]`,
		"h[1].grad_fn (graph of 300 nodes)": "h[*].grad_fn",
		"h.grad_fn (graph of 300 nodes)":    "h.grad_fn (graph of 300 nodes)",
	} {
		if got := holder.Alike(path); got != want {
			t.Errorf("Alike(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestKeys(t *testing.T) {
	for path, want := range map[string][]string{
		"x":                              nil,
		`opt.state[m.h[3].w]["exp_avg"]`: {"m.h[3].w", `"exp_avg"`},
		"a[1][2]":                        {"1", "2"},
		"]a[1":                           nil,
	} {
		if got := holder.Keys(path); !slices.Equal(got, want) {
			t.Errorf("Keys(%q) = %q, want %q", path, got, want)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, seed := range []string{"model.layers[3].weight", `a["]["].b`, "f() in x.py:1: local y", "[[[]]]", `['\`, "[1]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if n := len(strings.Join(holder.Segments(path), "")); n != len(path) && n != len(path)-len(": ") {
			t.Errorf("segments of %q are %q", path, holder.Segments(path))
		}
		alike := holder.Alike(path)
		if again := holder.Alike(alike); again != alike {
			t.Errorf("%q is alike %q, and that %q", path, alike, again)
		}
		holder.Keys(path)
	})
}

func TestAlikeRetainers(t *testing.T) {
	got := holder.AlikeRetainers([]holder.Retainer{
		{Holder: "a[1]", Class: "list", Items: 2, Retained: 10, Graph: 1, Storages: 3},
		{Holder: "b", Class: "list", Retained: 9},
		{Holder: "a[2]", Class: "list", Items: 5, Retained: 7, Graph: 2, Storages: 4},
		{Holder: "a[3]", Class: "dict", Retained: 6},
	})
	want := []holder.Retainer{
		{Holder: "a[*]", Class: "list", Items: 7, Retained: 17, Graph: 3, Storages: 7}, {Holder: "b", Class: "list", Retained: 9}, {Holder: "a[*]", Class: "dict", Retained: 6},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
