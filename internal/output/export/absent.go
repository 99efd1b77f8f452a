package export

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// valueOf returns the value of s in a column, or else why there is none: it is empty only where the
// column is.
func (c *column) valueOf(s *snapshot.Sample) string {
	if v := c.of(s); v != "" || c.empty {
		return v
	}
	return absent(c.name, s)
}

// absent says in brackets why a sample has no value in a column.
func absent(column string, s *snapshot.Sample) string {
	switch column {
	case "gpu":
		return "[on no GPU]"
	case "process", "pid", "owner", "user", "command":
		return "[unknown]"
	case "namespace", "pod", "container", "service", "job", "rank":
		return "[no " + column + "]"
	case "api":
		return "[no call]"
	case "runtime":
		return "[no call of the runtime]"
	}
	switch {
	case s.Kind == snapshot.Cached:
		return "[cached, unused]"
	case len(s.Stack) > 0 && s.Stack[len(s.Stack)-1].Lines[0].Function == snapshot.BeforeHistory:
		return snapshot.BeforeHistory
	case column == "line" && s.Holder != "":
		if strings.HasPrefix(s.Holder, "[") { // no object
			return s.Holder
		}
		return "held by " + holder.Alike(s.Holder)
	case takenByDriver(s):
		cause := snapshot.Cause(s)
		if cause == "cause not known" && libraryNames[s.Owner] != "" {
			cause = libraryNames[s.Owner] + ", " + cause
		}
		return "[" + cause + "]"
	}
	switch column {
	case "line":
		if insideLibrary(s) {
			return "[inside " + ownerName(s) + "]"
		}
	case "size":
		return "[no single allocations]"
	case "category", "category_from", "holder":
		switch {
		case !isTensor(s):
			return "[not in tensors]"
		case column == "category_from":
			return "[stack]"
		}
		return "[unknown]"
	case "module_path":
		if s.Module != "" {
			return "[unknown]"
		}
	case "operator":
		return "[no operator]"
	case "annotation":
		return "[no annotation]"
	case "compiled":
		return "[not compiled]"
	case "pattern":
		return "[no pattern]"
	}
	return outside(s)
}

// takenByDriver reports whether the driver took a sample's memory for itself.
func takenByDriver(s *snapshot.Sample) bool {
	return snapshot.Class(s.Kind) == event.ClassDriver.String() || s.Kind == event.KindSystem.String()
}

// outside says why a sample has no module, or no line: which code asked for its memory.
func outside(s *snapshot.Sample) string {
	switch {
	case len(s.Stack) == 0:
		return "[no stack]"
	case stacks.Backward(s.Stack):
		return "[backward pass]"
	case stacks.Python(s.Stack):
		return "[outside modules]"
	}
	return "[not Python]"
}

// ofTensors are the columns that say little of PyTorch's memory without tensors.
var ofTensors = []string{"operator", "module", "module_path", "category", "category_from", "holder", "line", "library-line", "function"}

// lacking says how to get what a page by names would show, if it was not recorded.
func lacking(page *render.Page, names []string, samples []*snapshot.Sample, m *snapshot.Meta) {
	for _, name := range []string{"user", "command", "job", "rank", "service", "pod", "container", "namespace"} {
		l := label(name)
		switch {
		case !slices.Contains(names, name), slices.ContainsFunc(samples, func(s *snapshot.Sample) bool { return l.Get(&s.Labels) != "" }):
		case name == "user", name == "command":
			instead := ""
			if len(gather(samples, func(s *snapshot.Sample) int { return s.PID })) > 1 && !slices.Contains(names, "process") && !slices.Contains(names, "pid") {
				instead = " --by process tells its processes apart."
			}
			page.Line("This file has no %s. A profile of one process has none, and neither has a recording by an earlier gpumemtrace.%s", name, instead)
		default:
			page.Line("No process here has a %s, as far as the trace could tell. --by user, --by command and --by process show what there is.", name)
		}
	}
	if !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(ofTensors, n) }) {
		return
	}
	pytorch := slices.ContainsFunc(samples, func(s *snapshot.Sample) bool {
		return s.Owner == "pytorch" && snapshot.Class(s.Kind) == event.ClassDevice.String()
	})
	tensors := slices.ContainsFunc(samples, func(s *snapshot.Sample) bool { return isTensor(s) || s.Kind == snapshot.Cached })
	switch {
	case m.Windows != nil:
		page.Line("Here segments are whole: tensors were traced in windows only (--windows).")
	case pytorch && !tensors:
		page.Line("No tensors were recorded, only PyTorch's segments: trace with --tensors to see what is in them.")
	}
	all := group{samples: samples}
	if m.Driver != "" && slices.Contains(names, "module") && all.modules() == 0 && slices.ContainsFunc(samples, func(s *snapshot.Sample) bool { return s.Module != "" }) {
		page.Line("A row has all modules of one class: trace with --holders 30s to count them, and to tell them apart (--by module_path).")
	}
	if strings.HasPrefix(m.StackMode, "frame pointers") && !slices.ContainsFunc(samples, func(s *snapshot.Sample) bool { return stacks.Python(s.Stack) }) {
		page.Line("No Python frames were recorded: trace with --stacks unwind.")
	}
}
