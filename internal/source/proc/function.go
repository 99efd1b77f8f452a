package proc

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"sort"

	"golang.org/x/arch/x86/x86asm"
)

// A functionTable is the sorted table of a file's functions that its
// PT_GNU_EH_FRAME has (Linux Standard Base, .eh_frame_hdr).
type functionTable struct {
	segment []*elf.Prog
	address uint64 // of the segment with the table
	entries []byte
	left    uint64 // bytes of functions that may still be disassembled
}

// functionTable returns nil for none, or one that is not as linkers write it.
func (e *ELF) functionTable() *functionTable {
	t := &functionTable{segment: e.loads(0), left: maxApart}
	for _, p := range e.Progs {
		const head, entry = 12, 8 // bytes
		// Version 1; the pointers are 4 bytes relative to themselves, the
		// count 4 bytes, the table's 4 bytes relative to the segment.
		const encodings = "\x01\x1b\x03\x3b"
		if p.Type != elf.PT_GNU_EH_FRAME || p.Filesz <= head || p.Filesz >= maxLookup {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil || string(b[:4]) != encodings {
			return nil
		}
		count := uint64(binary.LittleEndian.Uint32(b[8:]))
		t.address, t.entries = p.Vaddr, b[head:]
		if count == 0 || count*entry > uint64(len(t.entries)) {
			return nil
		}
		t.entries = t.entries[:count*entry]
	}
	if t.entries == nil {
		return nil
	}
	return t
}

// around returns the function with an address, disassembled, or nil.
func (t *functionTable) around(address uint64) *function {
	field := func(i, at int) uint64 { // relative to the segment
		return t.address + uint64(int32(binary.LittleEndian.Uint32(t.entries[8*i+at:])))
	}
	i := sort.Search(len(t.entries)/8, func(i int) bool { return field(i, 0) > address }) - 1
	if i < 0 {
		return nil
	}
	// Length, offset of what it has in common with others, start relative to
	// itself, size: 4 bytes each.
	start, entry := field(i, 0), field(i, 4)
	b := loaded(t.segment, entry, 16)
	if len(b) < 16 || entry+8+uint64(int32(binary.LittleEndian.Uint32(b[8:]))) != start {
		return nil
	}
	size := uint64(binary.LittleEndian.Uint32(b[12:]))
	if address-start >= size || size > t.left {
		return nil
	}
	t.left -= size
	code := loaded(t.segment, start, size)
	if uint64(len(code)) < size {
		return nil
	}
	return disassemble(code, start)
}

// A function is a disassembled function.
type function struct {
	start    uint64
	code     []byte
	at       []int // where each instruction begins
	targets  []int // where direct jumps within it lead to
	computed bool  // it jumps to addresses that it computes
}

// disassemble returns nil if the code is not a sequence of instructions, or if a jump leads
// into the middle of one.
func disassemble(code []byte, start uint64) *function {
	f := &function{start: start, code: code}
	for at := 0; at < len(code); {
		inst, ok := decode(code[at:])
		if !ok {
			return nil
		}
		f.at = append(f.at, at)
		at += inst.Len
		switch to := inst.Args[0].(type) {
		case x86asm.Rel:
			if to := at + int(to); to >= 0 && to < len(code) {
				f.targets = append(f.targets, to)
			}
		default:
			f.computed = f.computed || inst.Op == x86asm.JMP
		}
	}
	for _, to := range f.targets {
		if _, ok := f.index(to); !ok {
			return nil
		}
	}
	return f
}

// decode returns the instruction that code begins with. It knows none with a VEX prefix:
// for some, such as vzeroupper, x86asm returns too large a length.
func decode(code []byte) (inst x86asm.Inst, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	const endbr64 = "\xf3\x0f\x1e\xfa"
	if len(code) >= 4 && string(code[:4]) == endbr64 {
		return x86asm.Inst{Op: x86asm.NOP, Len: 4}, true
	}
	inst, err := x86asm.Decode(code[:min(len(code), 16)], 64)
	vex := slices.ContainsFunc(inst.Prefix[:], x86asm.Prefix.IsVEX)
	return inst, err == nil && inst.Len > 0 && !vex
}

// index returns which instruction begins at a place in the code.
func (f *function) index(at int) (int, bool) {
	i := sort.SearchInts(f.at, at)
	return i, i < len(f.at) && f.at[i] == at
}

// instruction decodes an instruction again: all of a library's took 17 MiB.
func (f *function) instruction(i int) *x86asm.Inst {
	inst, _ := decode(f.code[f.at[i]:])
	return &inst
}

func (f *function) holds(address uint64) bool { return address-f.start < uint64(len(f.code)) }

// operandOf returns the instruction that refers to memory relative to its end by
// the four bytes at an address.
func (f *function) operandOf(address uint64) (int, bool) {
	at := int(address - f.start)
	i := sort.SearchInts(f.at, at+1) - 1
	inst := f.instruction(i)
	return i, inst.PCRel == 4 && f.at[i]+inst.PCRelOff == at
}

// calls reports whether an instruction is a call relative to itself, and no more.
func (f *function) calls(i int) bool {
	return f.code[f.at[i]] == opCall && f.instruction(i).Len == callSize
}

const callSize = 5 // bytes

// second returns the second argument of a call, if it is a number that is loaded
// ahead of it by what is always run with it, as far as the function itself shows,
// and the address from which on it is known.
func (f *function) second(call int) (value uint32, since uint64, ok bool) {
	none := f.start + uint64(f.at[call]) + 1
	if f.computed {
		return 0, none, false
	}
	for i := call - 1; i >= 0; i-- {
		inst := f.instruction(i)
		if !writes(inst, x86asm.RSI) {
			continue
		}
		whole := inst.Args[0] == x86asm.ESI || inst.Args[0] == x86asm.RSI
		number, ok := inst.Args[1].(x86asm.Imm)
		behind := f.at[i] + inst.Len
		if inst.Op != x86asm.MOV || !whole || !ok || f.entered(behind, f.at[call]) {
			break
		}
		return uint32(number), f.start + uint64(behind), true
	}
	return 0, none, false
}

// entered reports whether a jump in the function leads to a place from from to to.
func (f *function) entered(from, to int) bool {
	return slices.ContainsFunc(f.targets, func(at int) bool { return from <= at && at <= to })
}

// enteredShortly reports whether anything around the function that may be a short
// jump leads to an address from from to to.
func (f *function) enteredShortly(code []*elf.Prog, from, to uint64) bool {
	const reach = 130 // bytes
	for _, p := range code {
		start, end := max(from-min(from, reach), p.Vaddr), to+reach
		if start >= end {
			continue
		}
		b := loaded([]*elf.Prog{p}, start, end-start)
		for i := 0; i+2 <= len(b); i++ {
			at := start + uint64(i)
			short := b[i] == 0xeb || b[i]&0xf0 == 0x70 || b[i]&0xfc == 0xe0
			target := at + 2 + uint64(int8(b[i+1]))
			if short && !f.holds(at) && target >= from && target <= to {
				return true
			}
		}
	}
	return false
}

// behind returns where a call's return can be seen (Call.Return).
func (f *function) behind(call int) uint64 {
	for i := call + 1; i < len(f.at); i++ {
		inst, at := f.instruction(i), f.at[i]
		switch b := f.code[at]; {
		case b == 0xeb, b == 0xe9, b&0xf0 == 0x70, b == 0x0f && f.code[at+1]&0xf0 == 0x80:
			return f.start + uint64(at)
		}
		_, memory := inst.Args[0].(x86asm.Mem)
		if memory && !compares(inst) || writes(inst, x86asm.RAX) || writes(inst, x86asm.RSP) || writes(inst, x86asm.RBP) {
			break
		}
	}
	return f.start + uint64(f.at[call]) + callSize
}

// compares reports whether an instruction writes the flags alone.
func compares(inst *x86asm.Inst) bool { return inst.Op == x86asm.TEST || inst.Op == x86asm.CMP }

// plain are instructions that write their first operand and the flags, and go on to
// the next.
var plain = map[x86asm.Op]bool{
	x86asm.MOV: true, x86asm.MOVZX: true, x86asm.MOVSX: true, x86asm.MOVSXD: true, x86asm.LEA: true, x86asm.NOP: true,
	x86asm.XOR: true, x86asm.AND: true, x86asm.OR: true, x86asm.ADD: true, x86asm.SUB: true,
	x86asm.SHL: true, x86asm.SHR: true, x86asm.SAR: true,
	x86asm.MOVD: true, x86asm.MOVQ: true, x86asm.MOVAPS: true, x86asm.MOVUPS: true, x86asm.MOVDQA: true, x86asm.MOVDQU: true,
	x86asm.MOVHPS: true, x86asm.PXOR: true, x86asm.PUNPCKLQDQ: true, x86asm.PUNPCKLDQ: true,
}

// writes reports whether an instruction may write any part of a 64-bit register, or go
// on elsewhere.
func writes(inst *x86asm.Inst, register x86asm.Reg) bool {
	return !compares(inst) && (!plain[inst.Op] || family(inst.Args[0]) == register)
}

// family returns the 64-bit register of which an operand is a part, or 0.
func family(operand x86asm.Arg) x86asm.Reg {
	r, ok := operand.(x86asm.Reg)
	switch {
	case !ok:
		return 0
	case r >= x86asm.AH && r <= x86asm.BH:
		return r - x86asm.AH + x86asm.RAX
	case r >= x86asm.SPB && r <= x86asm.R15B:
		return r - x86asm.SPB + x86asm.RSP
	case r >= x86asm.AL && r <= x86asm.BL:
		return r - x86asm.AL + x86asm.RAX
	case r >= x86asm.AX && r <= x86asm.R15W:
		return r - x86asm.AX + x86asm.RAX
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return r - x86asm.EAX + x86asm.RAX
	case r >= x86asm.RAX && r <= x86asm.R15:
		return r
	}
	return 0
}
