package proc

import (
	"encoding/binary"
	"slices"

	"golang.org/x/arch/x86/x86asm"
)

// A probe replaces an instruction by a breakpoint. Few instructions does the
// kernel carry out itself afterwards (arch/x86/kernel/uprobes.c: push of a
// register, jumps to a place relative to themselves); any other one runs by
// itself in a page of its own and ends in a second trap, which costs several
// times the first, in a virtual machine twenty times. So a probe on a function
// lies at the first instruction that the kernel carries out, if all of the
// function's callers come by there once, and find the function's arguments and
// stack there as they were at its start.

const (
	// maxPrologue bounds the code in which such an instruction is looked for, in bytes.
	maxPrologue = 64
	// reach is how far around it no jump to it may be, in bytes. A short jump
	// reaches 128; a function of libcuda's API has some hundreds.
	reach = 4 << 10
)

// Probe returns where in the file a probe on the function at an offset is best put: at
// the function's start, or behind it where the kernel carries out the instruction.
func (e *ELF) Probe(function uint64) uint64 {
	if !e.X86() {
		return function
	}
	code, start := e.CodeAround(function, maxPrologue)
	if prologue(code, start) > 0 {
		code, start = e.CodeAround(function, reach)
	}
	return function + uint64(prologue(code, start))
}

// prologue returns how far behind the start of a function of x86-64 its probe may
// lie, 0 if only there. around is the code around it, and start where it begins
// in that. Both may hold anything.
func prologue(around []byte, start int) int {
	code := around[start:min(len(around), start+maxPrologue)]
	for at := 0; at < len(code); {
		if carriedOut(code[at:]) {
			if at > 0 && jumpedTo(around, start+at) {
				return 0
			}
			return at
		}
		n := harmless(code[at:])
		if n == 0 {
			return 0
		}
		at += n
	}
	return 0
}

// carriedOut reports whether the kernel carries out the instruction that code
// begins with, and the stack pointer is the same until it has.
func carriedOut(code []byte) bool {
	two := len(code) >= 2
	switch b := code[0]; {
	case b >= 0x50 && b <= 0x57, two && b == 0x41 && code[1] >= 0x50 && code[1] <= 0x57: // push
		return true
	case two && (b == 0xeb || b >= 0x70 && b <= 0x7f): // jmp, jcc: 8 bits
		return true
	case len(code) >= 5 && b == 0xe9, len(code) >= 6 && b == 0x0f && code[1] >= 0x80 && code[1] <= 0x8f: // 32 bits
		return true
	}
	return false
}

// harmless returns the length of the instruction that code begins with, if the instruction
// continues with the next one and changes at most the flags and a register that holds
// neither an argument nor the stack pointer. Otherwise it returns 0.
func harmless(code []byte) int {
	inst, ok := decode(code)
	switch {
	case !ok:
		return 0
	case inst.Op == x86asm.NOP, compares(&inst):
	case !plain[inst.Op] || !slices.Contains(spare, family(inst.Args[0])):
		return 0
	}
	return inst.Len
}

// spare are the registers that hold neither an argument nor the stack pointer.
var spare = []x86asm.Reg{
	x86asm.RAX, x86asm.RBX, x86asm.RBP,
	x86asm.R10, x86asm.R11, x86asm.R12, x86asm.R13, x86asm.R14, x86asm.R15,
}

// jumpedTo reports whether any bytes of code, taken for a jump or a call relative to
// itself, lead to code[at]. It needs not know where instructions begin, and so
// rather finds a jump too many than one too few.
func jumpedTo(code []byte, at int) bool {
	near := func(i int) bool { // 32 bits that begin at i
		return i+4 <= len(code) && at == i+4+int(int32(binary.LittleEndian.Uint32(code[i:])))
	}
	for i, b := range code {
		switch {
		case b >= 0x70 && b <= 0x7f, b == 0xeb, b >= 0xe0 && b <= 0xe3: // jcc, jmp, loop, jcxz
			if i+2 <= len(code) && at == i+2+int(int8(code[i+1])) {
				return true
			}
		case b == 0xe8, b == 0xe9: // call, jmp
			if near(i + 1) {
				return true
			}
		case b == 0x0f: // jcc
			if near(i + 2) {
				return true
			}
		}
	}
	return false
}
