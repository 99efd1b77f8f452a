package unwind

import (
	"encoding/binary"
	"runtime"
	"sort"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// UpdateProcData implements ebpfapi.EbpfHandler. The unwinder finds the key of Python's
// thread states in the code of one of Python's functions. It misreads several forms of this
// code on arm64, and then uses a wrong word as the key. UpdateProcData corrects the address.
func (t *tables) UpdateProcData(kind libpf.InterpreterType, pid libpf.PID, data unsafe.Pointer) error {
	if runtime.GOARCH != "arm64" || kind != libpf.Python {
		return t.EbpfHandler.UpdateProcData(kind, pid, data)
	}
	info := *(*support.PyProcInfo)(data)
	if at, ok := t.analysis.pythonKey(info.AutoTLSKeyAddr); ok {
		info.AutoTLSKeyAddr = at
	}
	return t.EbpfHandler.UpdateProcData(kind, pid, unsafe.Pointer(&info))
}

// pythonKey returns the address of the key of a process's Python thread states. near is an
// address in the data of the same file, which follows its code.
func (a *analysis) pythonKey(near uint64) (uint64, bool) {
	i := sort.Search(len(a.mappings), func(i int) bool { return a.mappings[i].Start > near })
	if i == 0 || !a.mappings[i-1].HasFile() {
		return 0, false
	}
	m := &a.mappings[i-1]
	f, err := a.open(m)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	elf, err := f.ELF()
	if err != nil {
		return 0, false
	}
	const getter = "PyGILState_GetThisThreadState"
	functions, err := elf.Functions(func(name []byte) bool { return string(name) == getter })
	offset, ok := functions[getter]
	if err != nil || !ok || offset < m.Offset || offset-m.Offset >= m.End-m.Start {
		return 0, false
	}
	code, start := elf.CodeAround(offset, maxKeyCode)
	return keyARM(code[start:], m.Start+offset-m.Offset)
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
