package symbolize

import (
	"debug/elf"
	"encoding/binary"
	"io"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

// maxPLT bounds the bytes of one procedure linkage table.
const maxPLT = 16 << 20

// A stub is one entry of a procedure linkage table and the slot of the global
// offset table that it jumps through.
type stub struct{ start, end, slot uint64 }

// addPLT names the stubs of f, whose bytes are r, after the functions that
// their slots are relocated to.
func (b *builder) addPLT(f *elf.File, r io.ReaderAt) {
	decode := map[elf.Machine]func([]byte, uint64) []stub{
		elf.EM_X86_64:  stubsX86,
		elf.EM_AARCH64: stubsARM64,
	}[f.Machine]
	if decode == nil {
		return
	}
	stubs := make(map[uint64]stub) // by slot
	for _, s := range f.Sections {
		if s.Type != elf.SHT_PROGBITS || s.Name != ".plt" && !strings.HasPrefix(s.Name, ".plt.") && s.Name != ".iplt" {
			continue
		}
		if code, err := proc.SectionData(s, maxPLT); err == nil {
			for _, e := range decode(code, s.Addr) {
				if old, ok := stubs[e.slot]; ok && s.Name == ".plt" {
					e = old // .plt.sec has the entry that callers reach
				}
				stubs[e.slot] = e
			}
		}
	}
	if len(stubs) == 0 {
		return
	}
	for _, s := range f.Sections {
		if s.Type == elf.SHT_RELA {
			b.addStubs(f, s, r, stubs)
		}
	}
}

// stubsX86 finds "jmp *disp(%rip)" (ff 25) in the 16-byte entries of .plt and
// .plt.sec and the 8-byte ones of .plt.got.
func stubsX86(code []byte, addr uint64) []stub {
	var out []stub
	size := uint64(16)
	if len(code) >= 16 && code[0] == 0xff && code[1] == 0x25 && code[8] == 0xff && code[9] == 0x25 {
		size = 8
	}
	for at := uint64(0); at+8 <= uint64(len(code)); at += size {
		entry := code[at:min(at+size, uint64(len(code)))]
		// Entry 0 of .plt pushes before it jumps: ff 35.
		if entry[0] == 0xff && entry[1] == 0x35 {
			continue
		}
		for i := 0; i+6 <= len(entry) && i < 6; i++ { // after endbr64 and a bnd prefix
			if entry[i] == 0xff && entry[i+1] == 0x25 {
				disp := int32(binary.LittleEndian.Uint32(entry[i+2:]))
				next := addr + at + uint64(i) + 6
				out = append(out, stub{addr + at, addr + at + uint64(len(entry)), next + uint64(int64(disp))})
				break
			}
		}
	}
	return out
}

// stubsARM64 finds "adrp x16, page; ldr x17, [x16, #offset]", with a bti
// before it where branches are protected.
func stubsARM64(code []byte, addr uint64) []stub {
	var out []stub
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(code[i:]) }
	for i := 0; i+16 <= len(code); i += 4 {
		adrp, ldr := word(i), word(i+4)
		if adrp&0x9f00001f != 0x90000010 || ldr&0xffc003ff != 0xf9400211 {
			continue
		}
		if i >= 4 && word(i-4) == 0xa9bf7bf0 { // stp x16, x30: the header
			continue
		}
		pc := addr + uint64(i)
		imm := int64(int32((adrp>>5&0x7ffff<<2|adrp>>29&3)<<11)) >> 11 // 21 bits, signed
		slot := pc&^0xfff + uint64(imm<<12) + uint64(ldr>>10&0xfff)*8
		start := pc
		if i >= 4 && word(i-4) == 0xd503245f { // bti c
			start -= 4
		}
		out = append(out, stub{start, pc + 16, slot})
	}
	return out
}

// addStubs reads the relocations of s and names the stubs whose slots they
// fill.
func (b *builder) addStubs(f *elf.File, s *elf.Section, r io.ReaderAt, stubs map[uint64]stub) {
	if s.Flags&elf.SHF_COMPRESSED != 0 || s.Offset > 1<<62 || !b.scan(s.FileSize) {
		return
	}
	var syms *elf.Section
	var table uint8
	if int(s.Link) < len(f.Sections) {
		if t := f.Sections[s.Link]; t.Type == elf.SHT_DYNSYM && t.Offset <= 1<<62 {
			if n, ok := b.table(f, t.Link, r); ok {
				syms, table = t, n
			}
		}
	}
	const relaSize = 24
	chunk := make([]byte, relaSize*4096)
	for at := int64(0); at < int64(s.FileSize); at += int64(len(chunk)) {
		n, _ := r.ReadAt(chunk[:min(int64(len(chunk)), int64(s.FileSize)-at)], int64(s.Offset)+at)
		for e := chunk[:n/relaSize*relaSize]; len(e) > 0; e = e[relaSize:] {
			st, ok := stubs[binary.LittleEndian.Uint64(e)]
			if !ok {
				continue
			}
			info, addend := binary.LittleEndian.Uint64(e[8:]), binary.LittleEndian.Uint64(e[16:])
			var name nameRef
			var found bool
			if index := info >> 32; index == 0 {
				name, found = b.at(addend) // R_*_IRELATIVE: the resolver's address
			} else if syms != nil && index < syms.FileSize/elf.Sym64Size {
				var sym [4]byte
				if _, err := r.ReadAt(sym[:], int64(syms.Offset+index*elf.Sym64Size)); err == nil {
					name, found = nameRef{offset: binary.LittleEndian.Uint32(sym[:]), table: table}, true
				}
			}
			if found && len(b.symbols) < maxSymbols {
				name.plt = true
				b.symbols = append(b.symbols, symbol{st.start, st.end, name, rankSized | rankFunction})
			}
		}
		if n < len(chunk) {
			return
		}
	}
}

// at returns the name of a symbol that starts at addr.
func (b *builder) at(addr uint64) (nameRef, bool) {
	if b.starts == nil {
		b.starts = make(map[uint64]nameRef, len(b.symbols))
		for _, s := range b.symbols {
			if _, ok := b.starts[s.start]; !ok {
				b.starts[s.start] = s.name
			}
		}
	}
	n, ok := b.starts[addr]
	return n, ok
}
