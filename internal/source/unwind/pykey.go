package unwind

import (
	"encoding/binary"
	"maps"
	"runtime"
	"slices"
	"sort"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// UpdateProcData implements ebpfapi.EbpfHandler. The unwinder finds the key of Python's
// thread states in the code of one of Python's functions. It misreads several forms of this
// code on arm64, and then uses a wrong word as the key. UpdateProcData corrects the address. It
// also finds the counter of code objects.
func (t *tables) UpdateProcData(kind libpf.InterpreterType, pid libpf.PID, data unsafe.Pointer) error {
	if kind != libpf.Python {
		return t.EbpfHandler.UpdateProcData(kind, pid, data)
	}
	info := *(*support.PyProcInfo)(data)
	if runtime.GOARCH == "amd64" && info.Version == 0x030c {
		t.processes.counts(int(pid), t.analysis.codeCounter(info.AutoTLSKeyAddr))
	}
	if runtime.GOARCH != "arm64" {
		return t.EbpfHandler.UpdateProcData(kind, pid, data)
	}
	if at, ok := t.analysis.pythonKey(info.AutoTLSKeyAddr); ok {
		info.AutoTLSKeyAddr = at
	}
	return t.EbpfHandler.UpdateProcData(kind, pid, unsafe.Pointer(&info))
}

// pythonFunction calls f with the code of a process's Python from reach bytes before a function to as
// many behind its beginning, with where in it that is, and with the function's address. near is an
// address in the data of the same file, which follows its code. data returns what the file has for
// bytes of the process that it may write.
func (a *analysis) pythonFunction(near uint64, name string, reach uint64, f func(code []byte, start int, at uint64, data func(at, n uint64) []byte)) {
	i := sort.Search(len(a.mappings), func(i int) bool { return a.mappings[i].Start > near })
	if i == 0 || !a.mappings[i-1].HasFile() {
		return
	}
	m := &a.mappings[i-1]
	file, err := a.open(m)
	if err != nil {
		return
	}
	defer file.Close()
	e, err := file.ELF()
	if err != nil {
		return
	}
	functions, err := e.Functions(func(n []byte) bool { return string(n) == name })
	offset, ok := functions[name]
	if err != nil || !ok || offset < m.Offset || offset-m.Offset >= m.End-m.Start {
		return
	}
	code, start := e.CodeAround(offset, reach)
	at := m.Start + offset - m.Offset
	f(code, start, at, func(to, n uint64) []byte { return e.Variable(offset, to-at, n) })
}

// pythonKey returns the address of the key of a process's Python thread states.
func (a *analysis) pythonKey(near uint64) (key uint64, ok bool) {
	a.pythonFunction(near, "PyGILState_GetThisThreadState", maxKeyCode, func(code []byte, start int, at uint64, _ func(at, n uint64) []byte) {
		key, ok = keyARM(code[start:], at)
	})
	return key, ok
}

// codeCounter returns the address at which CPython 3.12 for x86-64 has the number of its next code
// object: _Py_next_func_version, which _PyCode_New loads (Objects/codeobject.c). It begins with how many
// the file itself has (Tools/build/deepfreeze.py). codeCounter returns 0 if that cannot be told. The
// kernel side notices if a code object has a greater number.
func (a *analysis) codeCounter(near uint64) (counter uint64) {
	const reach, fewest, most = 4096, 256, 4096 // the function may call a part of it, which is near
	a.pythonFunction(near, "_PyCode_New", reach, func(code []byte, start int, at uint64, data func(at, n uint64) []byte) {
		found := map[uint64]bool{}
		for i := 0; i+6 <= len(code); i++ {
			// mov or lea, relative to the next instruction.
			if code[i] != 0x8b && code[i] != 0x8d || code[i+1]&0xc7 != 0x05 {
				continue
			}
			counter = at + uint64(i-start) + 6 + uint64(int32(binary.LittleEndian.Uint32(code[i+2:])))
			if b := data(counter, 8); counter%4 == 0 && len(b) == 8 {
				if n := binary.LittleEndian.Uint32(b); fewest <= n && n < most {
					found[counter] = true
				}
			}
		}
		counter = 0
		if len(found) == 1 {
			counter = slices.Collect(maps.Keys(found))[0]
		}
	})
	return counter
}

// maxKeyCode bounds the code that is read, in bytes.
const maxKeyCode = 128

// keyARM returns the address of the pthread key that the code at an address calls its
// first function with, by value or as the Py_tss_t that holds it
// (Include/cpython/pythread.h). It does not know one that is found through a table of
// addresses, as shared libraries do. Encodings: Arm Architecture Reference Manual, C6.2.
func keyARM(code []byte, at uint64) (uint64, bool) {
	const tssKey = 4 // offset of the key in a Py_tss_t, bytes
	// Registers, by what is in them: an address, or the word at one.
	var addresses, words [32]uint64
	for ; len(code) >= 4; code, at = code[4:], at+4 {
		op := binary.LittleEndian.Uint32(code)
		to, from, immediate := op&31, op>>5&31, uint64(op>>10&0xfff)
		base := addresses[from]
		address, value := uint64(0), uint64(0)
		switch {
		case op&0x7c000000 == 0x14000000: // b, bl
			if words[0] != 0 {
				return words[0], true
			}
			return addresses[0] + tssKey, addresses[0] != 0
		case op&0x9f000000 == 0x90000000: // adrp: 19 bits at bit 5, the lowest two at bit 29
			pages := int64(int32(op<<8)>>13)<<2 | int64(op>>29&3)
			address = at&^0xfff + uint64(pages<<12)
		case op&0xffc00000 == 0x91000000 && base != 0: // add
			address = base + immediate
		case op&0xffc00000 == 0xb9400000 && base != 0: // ldr, of 32 bits
			value = base + 4*immediate
		case op&0x7c000000 == 0x34000000 || op&0xfffff01f == 0xd503201f: // cbz, tbz; nop, bti
			continue
		}
		addresses[to], words[to] = address, value // unknown after what else there is
	}
	return 0, false
}
