package stacks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Native says which native frames of a stack with Python frames are shown. It is
// a pflag.Value.
type Native uint8

const (
	// NativePython shows native frames but those of CPython itself, of the C
	// library below it, and of the callers of the outermost Python frame, so that a
	// stack begins with Python, and a reader sees that call at::, torch::, c10::
	// and the driver. Where autograd's engine called Python, it begins with that.
	NativePython Native = iota
	// NativeAll shows all native frames.
	NativeAll
	// NativeNone shows the Python frames and the driver call.
	NativeNone
)

var modeNames = [...]string{NativePython: "python", NativeAll: "all", NativeNone: "none"}

// String returns the mode as a value of --native.
func (m Native) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "invalid"
}

// Set parses a value of --native.
func (m *Native) Set(s string) error {
	i := slices.Index(modeNames[:], s)
	if i < 0 {
		return fmt.Errorf("parse native frames: %q is none of all, python, none", s)
	}
	*m = Native(i)
	return nil
}

// Type names the value in help texts.
func (Native) Type() string { return "mode" }

// Fold returns the frames of a stack, leaf first, that native shows. Stacks
// without Python frames stay whole. The result may be stack itself.
func Fold(native Native, stack []*snapshot.Location) []*snapshot.Location {
	root := begins(stack)
	python := root >= 0
	drop := func(i int, l *snapshot.Location) bool {
		switch {
		case synthetic(l), interpreted(l):
			return trampoline(l)
		case !python || native == NativeAll:
			return false
		default:
			return native == NativeNone || i > root || interpreterInternal(l)
		}
	}
	out := make([]*snapshot.Location, 0, len(stack))
	for i, l := range stack {
		if !drop(i, l) {
			out = append(out, l)
		}
	}
	if len(out) == len(stack) {
		return stack
	}
	return out
}

// begins returns the index of the frame that a stack with Python frames begins with,
// as NativePython has it, -1 for a stack without.
func begins(stack []*snapshot.Location) int {
	root := -1
	for i, l := range stack {
		if interpreted(l) && !trampoline(l) || root >= 0 && engine(l) {
			root = i
		}
	}
	return root
}

// trampoline reports whether l is a frame that CPython pushes for itself where
// C code calls Python (3.11 "shim", 3.12 "interpreter trampoline").
func trampoline(l *snapshot.Location) bool {
	if len(l.Lines) == 0 {
		return false
	}
	switch l.Lines[0].Function {
	case "<interpreter trampoline>", "<shim>":
		return true
	}
	return false
}

// interpreterInternal reports whether a native frame is CPython's or the C
// library's: it is in the interpreter's own file, or in a program that embeds
// the interpreter and has one of its names.
func interpreterInternal(l *snapshot.Location) bool {
	base := mappedFile(l)
	if interpreterFile(base) {
		return true
	}
	if libraryFile(base) && !matchAny(cLibrary, base) {
		return false
	}
	for _, line := range l.Lines {
		if line.Reason != "" || !internalName(line.Function) {
			return false
		}
	}
	return len(l.Lines) > 0
}

// cLibrary are the files that programs and threads start in.
var cLibrary = []string{"libc.so*", "libc-2.*.so", "ld-*.so*", "libpthread*.so*"}

// internalNames are functions of CPython, and of what starts programs and
// threads, that stand between Python frames; a final * stands for any ending.
var internalNames = []string{
	"_PyEval_*", "PyEval_*", "_PyFunction_*", "PyFunction_*", "PyObject_Call*", "_PyObject_Call*",
	"_PyObject_MakeTpCall", "_PyObject_FastCall*", "_PyObject_Vectorcall*", "PyObject_Vectorcall*",
	"PyVectorcall_Call", "_PyVectorcall_Call", "PyCFunction_*", "_PyCFunction_*", "_PyMethodDef_*",
	"_PyMethodDescr_*", "cfunction_*", "cfunction_call", "method_vectorcall*", "method_call", "method_descr_call",
	"classmethoddescr_call", "wrapperdescr_call", "wrapper_call", "slot_*", "type_call", "type_vectorcall",
	"object_vacall", "object_init*", "partial_call*", "partial_vectorcall*", "call_function", "do_call_core",
	"fast_function", "function_code_fastcall", "_PyCode_*", "PyNumber_*", "PyIter_Next", "gen_send_ex*",
	"gen_iternext", "builtin_exec", "builtin_eval", "builtin___build_class__", "PyImport_*", "_PyImport_*",
	"import_find_and_load", "PyRun_*", "_PyRun_*", "pyrun_*", "run_mod", "run_eval_code_obj", "pymain_*", "Py_RunMain",
	"Py_Main", "Py_BytesMain", "_Py_*", "thread_run", "pythread_wrapper", "t_bootstrap", "bootstrap",
	"_start", "__libc_start_main*", "__libc_start_call_main", "start_thread", "__clone3", "clone3", "__clone", "clone", "__GI___clone3",
}

func internalName(function string) bool {
	return slices.ContainsFunc(internalNames, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(function, prefix)
		}
		return function == pattern
	})
}

// interpreted reports whether l is an interpreter's frame: it has a file and
// no address.
func interpreted(l *snapshot.Location) bool {
	return l.Address == 0 && l.Mapping == nil && len(l.Lines) > 0 && l.Lines[0].File != ""
}

// synthetic reports whether l is a name that this tool put on the stack, such
// as the driver call at its leaf.
func synthetic(l *snapshot.Location) bool {
	return l.Address == 0 && l.Mapping == nil && !interpreted(l)
}

// mappedFile returns the base name of the file that l's address is in, "" for
// none.
func mappedFile(l *snapshot.Location) string {
	if l.Mapping == nil {
		return ""
	}
	return l.Mapping.Path[strings.LastIndexByte(l.Mapping.Path, '/')+1:]
}

// interpreterFile reports whether a file holds CPython itself: python3.12,
// libpython3.12.so.1.0.
func interpreterFile(base string) bool {
	rest, library := strings.CutPrefix(base, "libpython")
	if !library {
		var ok bool
		if rest, ok = strings.CutPrefix(base, "python"); !ok {
			return false
		}
	}
	rest = strings.TrimLeft(strings.TrimLeft(rest, "0123456789."), "dmt.") // ABI flags
	return rest == "" || library && strings.HasPrefix(rest, "so")
}

// libraryFile reports whether a base name is a shared object's.
func libraryFile(base string) bool {
	return strings.HasSuffix(base, ".so") || strings.Contains(base, ".so.")
}

// Any reports whether a line of a stack matches.
func Any(stack []*snapshot.Location, matches func(*snapshot.Line) bool) bool {
	for _, l := range stack {
		for i := range l.Lines {
			if matches(&l.Lines[i]) {
				return true
			}
		}
	}
	return false
}
