package stacks

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Operator returns the operator of PyTorch that the program, or autograd, called for
// the memory: "aten::zeros_like", whatever operators that called in turn. Where a node
// of autograd's graph called it, it is that node: "AddmmBackward0". An operator that is not seen
// is "": those of other libraries have no function of their own name, nor has
// generated code. Where a frame that would decide has no name yet, it is snapshot.NotNamed.
//
// stack is leaf first and not folded.
func Operator(stack []*snapshot.Location) string {
	name, _ := Called(stack)
	return name
}

// Called returns the operator, and the frames that called it.
func Called(stack []*snapshot.Location) (name string, by []*snapshot.Location) {
	by = stack
	for i, l := range stack {
		if name != "" && (interpreted(l) || engine(l)) {
			break
		}
		if !l.Named() {
			return snapshot.NotNamed, stack[i:]
		}
		if node := nodeAt(stack, i); node != "" {
			return node, stack[i+1:]
		}
		for _, line := range l.Lines {
			if op := operatorOf(&line); op != "" {
				name, by = op, stack[i+1:]
			}
		}
	}
	return name, by
}

// Operators returns all operators and nodes that a stack is in, innermost first, as
// PyTorch's own profiler nests them: "aten::empty_strided", "aten::empty_like",
// "aten::zeros_like". One that hands on to another implementation of itself is there
// once. snapshot.NotNamed stands for all that frames without a name yet may be.
func Operators(stack []*snapshot.Location) (names []string) {
	inside := "" // the operator that the frames before are of
	for i, l := range stack {
		if interpreted(l) {
			inside = ""
		}
		if !l.Named() && inside != snapshot.NotNamed {
			names, inside = append(names, snapshot.NotNamed), snapshot.NotNamed
		}
		if node := nodeAt(stack, i); node != "" {
			names, inside = append(names, node), ""
		}
		for _, line := range l.Lines {
			if op := operatorOf(&line); op != "" && op != inside {
				names, inside = append(names, op), op
			}
		}
	}
	return names
}

// operatorOf returns the operator that a function is the entry of. PyTorch generates
// at::_ops::NAME_OVERLOAD::call for each, and ::redispatch for what hands on to the
// next implementation.
func operatorOf(line *snapshot.Line) string {
	rest, ok := strings.CutPrefix(line.Function, "at::_ops::")
	if !ok || line.Reason != "" {
		return ""
	}
	name, function, _ := strings.Cut(rest, "::")
	if function != "call" && function != "redispatch" {
		return ""
	}
	return "aten::" + operatorName(name)
}

// nodeAt returns the node of autograd's graph that stack[i] applies, "" for none.
func nodeAt(stack []*snapshot.Location, i int) string {
	lines := stack[i].Lines
	if len(lines) == 0 || i+1 == len(stack) || !nativePrefix(stack[i+1], "torch::autograd::Node::operator()") {
		return ""
	}
	class, ok := strings.CutSuffix(lines[len(lines)-1].Function, "::apply")
	if !ok || !strings.HasPrefix(class, "torch::autograd::") {
		return ""
	}
	switch class = class[strings.LastIndex(class, "::")+2:]; class {
	case "PyNode":
		return pythonNode(stack[max(0, i-maxInside):i])
	case "CppNode": // of a template's argument, which names leave out
		return ""
	}
	return class
}

// maxInside bounds the frames in which the function that a PyNode applies is looked for.
// CPython's own are a few for each call.
const maxInside = 64

// pythonNode returns the node whose backward, in Python, a PyNode applies: "" before
// CPython 3.11, whose frames do not name the class.
func pythonNode(inside []*snapshot.Location) string {
	outer := ""
	for _, l := range slices.Backward(inside) {
		if !interpreted(l) || trampoline(l) {
			continue
		}
		if outer == "BackwardCFunction.apply" {
			class, method := method(l)
			if method != "backward" || class == "" {
				return ""
			}
			return class + "Backward"
		}
		outer = l.Lines[0].Function
	}
	return ""
}

// engine reports whether l is a function of autograd's engine, which runs the
// backward pass.
func engine(l *snapshot.Location) bool {
	return nativePrefix(l, "torch::autograd::Engine::")
}

func nativePrefix(l *snapshot.Location, prefix string) bool {
	if interpreted(l) {
		return false
	}
	for i := range l.Lines {
		if l.Lines[i].Reason == "" && strings.HasPrefix(l.Lines[i].Function, prefix) {
			return true
		}
	}
	return false
}

// method returns the class and the name of the method that a Python frame is of, as
// CPython 3.11 and later qualify it; class is "" where the frame lacks it.
func method(l *snapshot.Location) (class, name string) {
	name = l.Lines[0].Function
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		class, name = name[:i], name[i+1:]
	}
	class = class[strings.LastIndexByte(class, '.')+1:]
	if class == "<locals>" {
		class = ""
	}
	return class, name
}
