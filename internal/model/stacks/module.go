package stacks

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Module returns the modules of PyTorch whose forward the memory was asked for in,
// root first, by class: "Net/TransformerEncoder/TransformerEncoderLayer/Linear". It is
// "" outside of modules, and in the backward pass, which does not show the forward that it
// belongs to, unless a checkpoint runs one again.
//
// The class is the one whose code runs, as CPython 3.11 and later name it: of an
// inherited forward, the class that defines it. Where the frame does not name it, as
// before that, the file stands for it: "linear.py". A module whose hook asked, and not
// its forward, is not among them; nor is one whose forward was called as a plain method. Where a frame that
// would decide has no name yet, it is snapshot.NotNamed.
//
// stack is leaf first and not folded.
func Module(stack []*snapshot.Location) string {
	var path []string
	var forward *snapshot.Location // nearest to where its module is called from
	named := true                  // are all native frames since the last one of Python
	for _, l := range stack {
		switch {
		case !l.Named() && l.Address != 0:
			named = false
			continue
		case !l.Named(), !named && inTorch(l, "autograd/"):
			return snapshot.NotNamed // it may be of Python, or what it called may be the engine
		case engine(l):
			return join(path)
		case !interpreted(l):
			continue
		case moduleCall(l):
			if forward != nil {
				path = append(path, moduleName(forward))
			}
			forward = nil
		default:
			if _, name := method(l); name == "forward" {
				forward = l
			}
		}
		named = true
	}
	return join(path)
}

// maxModule bounds the result of Module, in bytes: a process may name its functions as it
// likes, and call them in each other hundreds of times.
const maxModule = 1 << 10

// join joins names, of which the first is the innermost. Names without room become "…".
func join(path []string) string {
	size := 0
	for i, name := range path {
		if size += len(name) + len("/…"); size > maxModule {
			path = append(path[:i:i], "…")
			break
		}
	}
	slices.Reverse(path)
	return strings.Join(path, "/")
}

// moduleFile has nn.Module, and moduleCalls are its functions that run forward.
const moduleFile = "nn/modules/module.py"

var moduleCalls = words("_wrapped_call_impl _call_impl _slow_forward inner __call__")

// moduleCall reports whether l is a frame of a module that is called.
func moduleCall(l *snapshot.Location) bool {
	if !inTorch(l, moduleFile) {
		return false
	}
	_, name := method(l)
	return moduleCalls[name]
}

func moduleName(forward *snapshot.Location) string {
	if class, _ := method(forward); class != "" {
		return class
	}
	file := forward.Lines[0].File
	return file[strings.LastIndexByte(file, '/')+1:]
}

// inTorch reports whether l is a Python frame of a file, or of a folder that ends in
// "/", of the package torch.
func inTorch(l *snapshot.Location, name string) bool {
	if !interpreted(l) {
		return false
	}
	file := l.Lines[0].File
	i := strings.LastIndex(file, "/torch/")
	if i < 0 {
		return false
	}
	rest := file[i+len("/torch/"):]
	return rest == name || strings.HasSuffix(name, "/") && strings.HasPrefix(rest, name)
}
