package stacks

import (
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A Call is where a program calls an optimizer's step, or where it clips gradients. The zero Call is
// none.
type Call struct {
	ID    uint64 // equal for calls at one line of the program
	Clips bool
}

// Step returns in which Call a stack is. ok is false where that is not known: the stack has no
// Python frames, ends before Python's outermost one, or lacks some in between. The line of the
// program is the frame nearest to the call that is in no installed package.
//
// An optimizer is one of torch.optim's, or of a class made from its Optimizer, which
// wraps every step (torch/optim/optimizer.py, profile_hook_step). A scheduler has a step too,
// but it is not an optimizer. If one optimizer calls another, the step is the outer one's.
//
// stack is leaf first and not folded. Native frames make no difference: their names
// may come later.
func Step(stack []*snapshot.Location) (call Call, ok bool) {
	root, step := -1, -1
	for i, l := range stack {
		if synthetic(l) {
			return Call{}, false // it stands for frames that are not known
		}
		if !interpreted(l) || trampoline(l) {
			continue
		}
		root = i
		if stepFrame(l) || clipFrame(l) {
			step = i
		}
	}
	if root < 0 || !outermost[stack[root].Lines[0].Function] {
		return Call{}, false
	}
	if step < 0 {
		return Call{}, true
	}
	for _, l := range stack[step+1:] {
		if interpreted(l) && !trampoline(l) && (!installed(l) || l == stack[root]) {
			line := &l.Lines[0]
			h := fnv.New64a()
			for _, text := range [...]string{line.Function, line.File, strconv.Itoa(line.Line)} {
				h.Write([]byte(text))
				h.Write([]byte{0})
			}
			return Call{max(h.Sum64(), 1), clipFrame(stack[step])}, true
		}
	}
	return Call{}, false // its outermost frame is the step itself
}

// installed reports whether a Python frame is of a package that was installed.
func installed(l *snapshot.Location) bool {
	return strings.Contains(l.Lines[0].File, "/site-packages/") || strings.Contains(l.Lines[0].File, "/dist-packages/")
}

// outermost are the functions that a whole stack of Python's ends in: of a program, and
// of a thread.
var outermost = words("<module> _run_module_as_main _bootstrap Thread._bootstrap")

// stepFrame reports whether l is a frame of an optimizer's step, or of what wraps it.
func stepFrame(l *snapshot.Location) bool {
	if !inTorch(l, "optim/") {
		return false
	}
	file := l.Lines[0].File
	_, name := method(l)
	switch file[strings.LastIndexByte(file, '/')+1:] {
	case "lr_scheduler.py", "swa_utils.py":
		return false
	case "optimizer.py":
		return name == "step" || name == "wrapper"
	}
	return name == "step"
}

// clipFrame reports whether l is a frame of PyTorch's that clips gradients.
func clipFrame(l *snapshot.Location) bool {
	if !inTorch(l, "nn/utils/clip_grad.py") && !inTorch(l, "distributed/fsdp/") {
		return false
	}
	_, name := method(l)
	return strings.HasPrefix(name, "clip_grad")
}
