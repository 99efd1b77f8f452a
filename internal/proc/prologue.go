package proc

import "encoding/binary"

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

// carriedOut tells whether the kernel carries out the instruction that code
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

// harmless returns the length of the instruction that code begins with, if that is
// one which goes on to the next and changes neither memory, nor the stack pointer,
// nor a register of an argument; else, or if it is not known, 0.
func harmless(code []byte) int {
	if len(code) >= 4 && string(code[:4]) == endbr64 {
		return 4
	}
	at, rex := 0, byte(0)
	next := func() (b byte) { // 0 behind the end, which length finds
		if at < len(code) {
			b = code[at]
		}
		at++
		return b
	}
	opcode := next()
	if opcode&0xf0 == 0x40 {
		rex, opcode = opcode, next()
	}
	const ( // what is written: a register, by a field of the instruction
		nothing = iota
		byReg
		byRM
	)
	written, extension, immediate := nothing, -1, 0
	switch opcode {
	case 0x38, 0x39, 0x3a, 0x3b, 0x84, 0x85: // cmp, test
	case 0x80, 0x83: // cmp $8 bits
		extension, immediate = 7, 1
	case 0x81: // cmp $32 bits
		extension, immediate = 7, 4
	case 0xf6: // test $8 bits
		extension, immediate = 0, 1
	case 0xf7: // test $32 bits
		extension, immediate = 0, 4
	case 0x33, 0x63, 0x8b, 0x8d: // xor, movslq, mov, lea
		written = byReg
	case 0x31, 0x89: // xor, mov
		written = byRM
	case 0xc7: // mov $32 bits
		written, extension, immediate = byRM, 0, 4
	case 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd, 0xbe, 0xbf: // mov $32 or 64 bits
		if rex&rexW != 0 {
			at += 4
		}
		if at += 4; at > len(code) || !spare(opcode&7|rex&rexB<<3) {
			return 0
		}
		return at
	case 0x0f:
		switch next() {
		case 0x1f: // nop
		case 0xb6, 0xb7: // movzbl, movzwl
			written = byReg
		default:
			return 0
		}
	default:
		return 0
	}

	modrm := next()
	mod, reg, rm := modrm>>6, modrm>>3&7, modrm&7
	base := rm
	if mod != 3 && rm == 4 { // a byte with the base and an index follows
		base = next() & 7
	}
	switch {
	case mod == 1:
		at++
	case mod == 2, mod == 0 && base == 5:
		at += 4
	}
	at += immediate
	switch {
	case at > len(code), extension >= 0 && int(reg) != extension:
		return 0
	case written == byReg && !spare(reg|rex&rexR<<1):
		return 0
	case written == byRM && (mod != 3 || !spare(rm|rex&rexB<<3)):
		return 0
	}
	return at
}

const (
	endbr64 = "\xf3\x0f\x1e\xfa"

	// Of the prefix that widens an instruction's operands and fields. Intel SDM
	// volume 2, 2.2.1.
	rexW, rexR, rexB = 8, 4, 1
)

// spare tells whether a register holds neither an argument nor the stack pointer,
// by its number: rax, rbx, rbp and r10 to r15.
func spare(register byte) bool { return 1<<register&(1<<0|1<<3|1<<5|0xfc00) != 0 }

// jumpedTo tells whether any bytes of code, taken for a jump or a call relative to
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
