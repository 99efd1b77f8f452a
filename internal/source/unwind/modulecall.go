package unwind

import (
	"encoding/binary"
	"strings"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/support"
)

// A call of a module of PyTorch runs Module._wrapped_call_impl of torch/nn/modules/module.py,
// and before PyTorch 2.1 Module._call_impl. That is one code object in a process. Once it is
// known, the kernel side reads the first variable of its frames, which is the module, as part
// of the stack: then one line of code has a stack for each layer that runs it.

// A moduleCall is the code object that runs when a module is called.
type moduleCall struct {
	object  uint64
	wrapper bool // it is _wrapped_call_impl, which calls the other one
}

// better reports whether c is rather to be used than another one.
func (c moduleCall) better(than moduleCall) bool { return c.wrapper && !than.wrapper }

const (
	moduleFile    = "/torch/nn/modules/module.py"
	moduleWrapper = "_wrapped_call_impl"
	moduleCaller  = "_call_impl"
)

// callsModule returns which function that calls a module a frame is of, "" for another one.
func (f *namedFrame) callsModule() string {
	if f.hidden || !strings.HasSuffix(f.File, moduleFile) {
		return ""
	}
	name := f.Function[strings.LastIndexByte(f.Function, '.')+1:]
	if name != moduleWrapper && name != moduleCaller {
		return ""
	}
	return name
}

// modules returns the modules that are called in the frames of a stack. The kernel side goes by
// the address of a code object, where another one may lie by now: the name tells.
func modules(frames []pythonFrame, named []namedFrame) (out []uint64) {
	for i := range frames {
		if frames[i].module != 0 && named[i].callsModule() != "" {
			out = append(out, frames[i].module)
		}
	}
	return out
}

// findModuleCall looks among the frames of a stack for one that calls a module, and makes the
// kernel side read the modules of later stacks.
func (u *Unwinder) findModuleCall(pid uint32, frames []pythonFrame, named []namedFrame) {
	var found moduleCall
	for i := range frames {
		if name := named[i].callsModule(); name != "" {
			if call := (moduleCall{frames[i].object, name == moduleWrapper}); found.object == 0 || call.better(found) {
				found = call
			}
		}
	}
	if found.object != 0 && u.known.wantsModuleCall(int(pid), found) && (found.wrapper || !u.kernel.cell(pid, found.object)) {
		u.known.callsModules(int(pid), found)
	}
}

// localKinds is where a code object of CPython 3.11 and later has a bytes object with the kind
// of each variable, and cellVariable the kind of one in a cell (co_localspluskinds,
// Include/cpython/code.h, and CO_FAST_CELL, Include/internal/pycore_code.h).
const (
	localKinds   = 104
	cellVariable = 0x40
)

// cell reports whether the first variable of a function lies in a cell, because a function
// inside of it uses it. Each call then has a new cell, by which stacks may not be told apart.
// Before CPython 3.11 the frame has nothing in its place.
func (k *kernel) cell(pid uint32, object uint64) bool {
	var info support.PyProcInfo
	if k.maps["py_procs"].Lookup(pid, unsafe.Pointer(&info)) != nil {
		return true
	}
	if info.Version < 0x030b {
		return false
	}
	var p pieces
	word := p.want(object+localKinds, 8)
	p.read(processMemory(pid))
	if !word.ok {
		return true
	}
	kind := p.want(binary.NativeEndian.Uint64(word.to)+bytesHead, 1)
	p.read(processMemory(pid))
	return !kind.ok || kind.to[0]&cellVariable != 0
}
