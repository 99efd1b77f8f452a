package proc

import (
	"debug/elf"
	"encoding/binary"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// Limits on what Calls reads. A libcuda has 17 MiB of code, 1 MiB of writable data,
// 35,000 functions and 112 calls of ioctl.
const (
	maxScanned  = 64 << 20 // bytes of code
	maxWritable = 64 << 20 // bytes of data
	maxLookup   = 16 << 20 // bytes of the table of functions
	maxCalls    = 1 << 10
	maxApart    = 1 << 20 // bytes of functions that call
	maxWorkers  = 8
)

// A Call is an instruction that calls one of the file's stubs.
type Call struct {
	Offset uint64 // in the file
	// Return is the offset of an instruction that the call, once it has
	// returned, comes to straight: what it returned is still in its register,
	// the stack pointer is what it was before the call, and no memory has been
	// written. It is a jump if there is one to be had.
	Return uint64
	// Second is the call's second argument, if Constant: it is the same each time.
	Second   uint32
	Constant bool
}

// Calls returns all calls of a stub, which is given by its offset in the file, in
// code of x86-64. It returns none unless these are known to be all, and
// instructions: nothing else in the file refers to the stub, and the functions in
// which anything looks as if it did, which the file's table for unwinding lists, can
// be disassembled from start to end. A pointer to the stub that is made up at run time
// stays unknown; no compiler makes one.
func (e *ELF) Calls(stub uint64) []Call {
	if !e.X86() {
		return nil
	}
	code := e.code()
	address, ok := addressOf(code, stub)
	functions := e.functionTable()
	if !ok || functions == nil || fileSize(code) > maxScanned || e.pointsTo(address) {
		return nil
	}
	operands := references(code, address)
	if len(operands) > maxCalls {
		return nil
	}
	var calls []Call
	var known []span // for each call, where its second argument is known
	var f *function
	for _, operand := range operands {
		if f == nil || !f.holds(operand) {
			if f = functions.around(operand); f == nil {
				return nil
			}
		}
		i, ok := f.operandOf(operand)
		if !ok {
			continue // it only looks like a reference
		}
		site := f.start + uint64(f.at[i])
		offset, ok := e.offset(code, site)
		if !ok || !f.calls(i) {
			return nil
		}
		second, since, ok := f.second(i)
		known = append(known, span{since, site + 1})
		calls = append(calls, Call{offset, offset + f.behind(i) - site, second, ok && !f.enteredShortly(code, since, site)})
	}
	var mu sync.Mutex
	eachJump(code, func(target uint64) {
		i := sort.Search(len(known), func(i int) bool { return known[i].to > target })
		if i < len(known) && target >= known[i].from {
			mu.Lock()
			calls[i].Constant = false
			mu.Unlock()
		}
	})
	return calls
}

// A span is a range of addresses.
type span struct{ from, to uint64 }

// fileSize returns how many bytes the file has of segments.
func fileSize(segments []*elf.Prog) (size uint64) {
	for _, p := range segments {
		size += min(p.Filesz, 1<<40)
	}
	return size
}

// addressOf returns where the byte of a segment at an offset in the file is loaded.
func addressOf(segments []*elf.Prog, offset uint64) (uint64, bool) {
	for _, p := range segments {
		if offset >= p.Off && offset-p.Off < p.Filesz {
			return p.Vaddr + (offset - p.Off), true
		}
	}
	return 0, false
}

// pointsTo reports whether the loader makes a pointer to an address, as far as
// relocations and writable data show, or whether they are too many to say.
func (e *ELF) pointsTo(address uint64) bool {
	found, left := false, uint64(maxRelocations)
	for _, s := range e.Sections {
		if s.Type != elf.SHT_RELA {
			continue
		}
		count := s.FileSize / relocationSize
		if count > left || s.Flags&elf.SHF_COMPRESSED != 0 {
			return true
		}
		left -= count
		err := entries(s, relocationSize, func(_ uint64, b []byte) {
			found = found || binary.LittleEndian.Uint64(b[16:]) == address
		})
		if err != nil {
			return true
		}
	}
	data := e.loads(elf.PF_W)
	if fileSize(data) > maxWritable {
		return true
	}
	var word atomic.Bool
	eachPiece(data, func(b []byte, _ uint64) {
		for ; len(b) >= 8; b = b[8:] {
			if binary.LittleEndian.Uint64(b) == address {
				word.Store(true)
			}
		}
	})
	return found || word.Load()
}

// pieceStep is how much of a segment is read at a time, in bytes, and pieceOverlap
// what follows and is read again with the next piece: more than an operand of four
// bytes and what stands in front of it.
const (
	pieceStep    = 1 << 16
	pieceOverlap = 8
)

// eachPiece calls visit with all that the file has of segments, piece by piece, and
// where each is loaded: of several at the same time, and in any order.
func eachPiece(segments []*elf.Prog, visit func(b []byte, address uint64)) {
	var next atomic.Uint64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxWorkers) {
		workers.Go(func() {
			buf := make([]byte, pieceStep+pieceOverlap)
			for {
				at := (next.Add(1) - 1) * pieceStep
				p := segmentAt(segments, &at)
				if p == nil {
					return
				}
				n, _ := p.ReadAt(buf[:min(uint64(len(buf)), p.Filesz-at)], int64(at))
				visit(buf[:n], p.Vaddr+at)
			}
		})
	}
	workers.Wait()
}

// segmentAt returns the segment with the byte that comes at steps of pieces into all
// of them, each of which begins a step of its own, and leaves in *at where it is there.
func segmentAt(segments []*elf.Prog, at *uint64) *elf.Prog {
	for _, p := range segments {
		if *at < p.Filesz {
			return p
		}
		*at -= (p.Filesz + pieceStep - 1) / pieceStep * pieceStep
	}
	return nil
}

// references returns the addresses, in rising order, of any four bytes of code which
// as the operand of an instruction that refers to memory relative to its end lead to
// an address, wherever instructions begin: up to maxCalls and some more.
func references(code []*elf.Prog, to uint64) (operands []uint64) {
	var mu sync.Mutex
	eachPiece(code, func(b []byte, address uint64) {
		end := uint32(to) - uint32(address) - 4
		found := func(i int) {
			mu.Lock()
			defer mu.Unlock()
			if len(operands) < 2*maxCalls {
				operands = append(operands, address+uint64(i))
			}
		}
		i := 0
		for ; i+8 <= len(b); i += 4 {
			word, at := binary.LittleEndian.Uint64(b[i:]), end-uint32(i)
			if uint32(word) == at || uint32(word>>8) == at-1 || uint32(word>>16) == at-2 || uint32(word>>24) == at-3 {
				for k := range 4 {
					if uint32(word>>(8*k)) == at-uint32(k) {
						found(i + k)
					}
				}
			}
		}
		for ; i+4 <= len(b); i++ {
			if binary.LittleEndian.Uint32(b[i:]) == end-uint32(i) {
				found(i)
			}
		}
	})
	slices.Sort(operands)
	return slices.Compact(operands)
}

// opCall and opJump are the opcodes of a call and a jump relative to itself, by 32 bits.
const opCall, opJump = 0xe8, 0xe9

// eachJump calls visit with where any bytes of code lead as a call or a jump by 32
// bits, wherever instructions begin: with several at the same time.
func eachJump(code []*elf.Prog, visit func(target uint64)) {
	eachPiece(code, func(b []byte, address uint64) {
		for i := 1; i+4 <= len(b); i++ {
			if op := b[i-1]; op == opCall || op == opJump || op&0xf0 == 0x80 && i > 1 && b[i-2] == 0x0f {
				visit(address + uint64(i) + 4 + uint64(int32(binary.LittleEndian.Uint32(b[i:]))))
			}
		}
	})
}
