package holder

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// roles are the names of roles, as categories of tensors have them.
var roles = [...]string{NoRole: "", Parameter: "parameter", Buffer: "buffer", Gradient: "gradient",
	OptimizerState: "optimizer_state", Activation: "activation"}

// NumRoles is how many roles there are.
const NumRoles = Role(len(roles))

// String returns the role's name, "" for none.
func (r Role) String() string {
	if r < NumRoles {
		return roles[r]
	}
	return ""
}

// MarshalText writes the role's name.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// OnGPU reports whether the storage lies in memory of a GPU.
func (s *Storage) OnGPU() bool { return s.Device >= 0 }

// OnCPU reports whether the storage lies in memory of the CPU.
func (s *Storage) OnCPU() bool { return s.Device == CPU }

// CyclePrefix begins the path to what only a reference cycle keeps, and GradientCycle ends it if the cycle is
// of a tensor and its gradient.
const (
	CyclePrefix   = "reference cycle: "
	GradientCycle = ", .grad and its graph (create_graph=True)"
)

// Stuck reports whether a reference cycle keeps the storage that no garbage collector frees: it leads
// through references of C++.
func (s *Storage) Stuck() bool { return !s.Cycle && strings.HasPrefix(s.Holder, CyclePrefix) }

// Name returns the path to the storage, or what stands for it where no object of the heap
// holds it.
func (s *Storage) Name() string {
	if s.Holder != "" {
		return s.Holder
	}
	return NoHolder
}

// Most names the holder of most bytes, and how many others there are.
func Most(held map[string]int64) string {
	if len(held) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(held), func(a, b string) int {
		return cmp.Or(cmp.Compare(held[b], held[a]), strings.Compare(a, b))
	})
	if len(names) == 1 {
		return names[0]
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}

// These stand for the path of what no object of the heap holds, or what no array has although a library
// keeps it.
const (
	NoHolder      = "[held by C++ alone]"
	NativeGraph   = "[held by C++ alone, in a CUDA graph's pool]"
	NativePrivate = "[held by C++ alone, in a private pool]"
	Workspace     = "[workspace of cuBLAS]"
	FreeInCuPy    = "[free in CuPy's pool]"
	FreedLater    = "[waits for Numba to free it]"
)

// Native reports whether C++ alone holds the storage.
func (s *Storage) Native() bool {
	switch s.Holder {
	case "", NoHolder, NativeGraph, NativePrivate, Workspace:
		return true
	}
	return false
}

// variables are what stands between a frame and what it holds: a variable by its name, or
// a value that has none.
var variables = [...]string{": local ", ": stack "}

// Segments divides a path: model.layers[3].weight is model, .layers, [3] and .weight, and
// step() in train.py:88: local x.grad is step() in train.py:88, local x and .grad.
func Segments(path string) (out []string) {
	if strings.HasSuffix(path, GradientCycle) {
		return []string{path}
	}
	for _, v := range variables {
		if i := strings.Index(path, v); i >= 0 {
			out, path = append(out, path[:i]), path[i+len(": "):]
			break
		}
	}
	if i := strings.Index(path, `": `); len(out) == 0 && i >= 0 && strings.HasPrefix(path, "thread ") {
		out, path = append(out, path[:i+1]), path[i+len(`": `):]
	}
	begin, note := 0, len(path)
	if i := strings.LastIndex(path, " ("); i >= 0 && strings.HasSuffix(path, ")") {
		note = i
	}
	each(path, func(at, depth int) {
		if depth == 0 && at > begin && at < note && (path[at] == '.' || path[at] == '[') {
			out, begin = append(out, path[begin:at]), at
		}
	})
	if begin < len(path) {
		out = append(out, path[begin:])
	}
	return out
}

// Alike replaces each number in brackets by a star: losses[4] and losses[5] are alike, whatever the sizes of
// their graphs are.
func Alike(path string) string {
	alike := replaceNumbers(path, func(string) string { return "[*]" })
	if alike != path {
		alike, _, _ = strings.Cut(alike, " (graph of ")
	}
	return alike
}

// Dotted writes a path as named_parameters() does: model.layers.3.weight.
func Dotted(path string) string {
	return replaceNumbers(path, func(n string) string { return "." + n })
}

// replaceNumbers replaces each number in brackets, with its brackets.
func replaceNumbers(path string, by func(number string) string) string {
	var b strings.Builder
	begin := 0
	each(path, func(at, _ int) {
		if path[at] != '[' {
			return
		}
		n := at + 1 + len("-")
		if !strings.HasPrefix(path[at+1:], "-") {
			n = at + 1
		}
		end := n
		for end < len(path) && '0' <= path[end] && path[end] <= '9' {
			end++
		}
		if end > n && end < len(path) && path[end] == ']' {
			b.WriteString(path[begin:at])
			b.WriteString(by(path[at+1 : end]))
			begin = end + 1
		}
	})
	if begin == 0 {
		return path
	}
	return b.String() + path[begin:]
}

// AlikeRetainers puts retainers together that differ in numbers alone, in the order of the
// first of each: none of them is a part of another.
func AlikeRetainers(all []Retainer) (out []Retainer) {
	type identity struct{ holder, class string }
	index := make(map[identity]int)
	for _, r := range all {
		r.Holder = Alike(r.Holder)
		id := identity{r.Holder, r.Class}
		i, ok := index[id]
		if !ok {
			index[id] = len(out)
			out = append(out, r)
			continue
		}
		o := &out[i]
		o.Retained, o.Graph, o.Storages, o.Items = o.Retained+r.Retained, o.Graph+r.Graph, o.Storages+r.Storages, o.Items+r.Items
	}
	return out
}

// Keys returns what stands in the outermost brackets of a path: of
// optimizer.state[model.weight]["step"] it is model.weight and "step".
func Keys(path string) (out []string) {
	begin := -1
	each(path, func(at, depth int) {
		switch {
		case path[at] == '[' && depth == 0:
			begin = at + 1
		case path[at] == ']' && depth == 1 && begin >= 0:
			out = append(out, path[begin:at])
		}
	})
	return out
}

// each calls f with the place of each byte of a path that is not in quotes, and how many
// brackets are open before it.
func each(path string, f func(at, depth int)) {
	var quote byte
	depth := 0
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case quote != 0:
			if c == '\\' {
				i++
			} else if c == quote {
				quote = 0
			}
			continue
		case (c == '"' || c == '\'') && depth > 0:
			quote = c
			continue
		}
		f(i, depth)
		switch {
		case c == '[':
			depth++
		case c == ']' && depth > 0:
			depth--
		}
	}
}
