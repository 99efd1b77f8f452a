package symbolize

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"io"
	"slices"
	"sort"
	"strings"
)

// maxSymbols bounds the function symbols of one file. libtorch_cuda.so has
// under a million.
const maxSymbols = 1 << 21

// A symbol is one function symbol, in the file's virtual addresses.
type symbol struct {
	start, end uint64 // end is start for a symbol without a size
	offset     uint32 // of its name, as in a nameRef
	table      uint8
	rank       uint8 // the larger wins where two symbols start
}

func (s *symbol) name() nameRef { return nameRef{s.offset, s.table} }

// A nameRef is a name's place in a string table of the file: names are read
// when somebody asks for them, so that an index stays small. The offset 0 is of no name.
type nameRef struct {
	offset uint32
	table  uint8
}

// Ranks, from what matters most.
const (
	rankSized    = 1 << 4
	rankFunction = 1 << 3
	rankGlobal   = 2 << 1
	rankWeak     = 1 << 1
	rankSymtab   = 1 << 0
)

// own reports whether s has a right to its range. The others are labels,
// which name only what no function covers.
func (s *symbol) own() bool {
	return s.rank&rankSized != 0 && s.rank&rankFunction != 0
}

// A span names the addresses from start to the next span's, unless it has no name.
type span struct {
	start uint64
	name  nameRef
}

// A symtab answers which function symbol covers an address.
type symtab struct {
	tables []strtab
	spans  []span
}

type strtab struct {
	r            io.ReaderAt
	offset, size int64
}

// builder gathers the symbols of one program, from its own file and from its
// debug file.
type builder struct {
	tables  []strtab
	symbols []symbol
	code    []codeRange
	scanned uint64 // bytes of tables read
	symtab  bool   // a .symtab was among them
	full    bool   // more than maxSymbols
}

// maxScan bounds the bytes of symbol tables that one program makes us read: its
// section headers may name the same bytes many times.
const maxScan = 1 << 30

// A codeRange is a section of code; a symbol without a size ends with it.
type codeRange struct{ start, end uint64 }

// add reads the symbol tables of f, whose bytes are r.
func (b *builder) add(f *elf.File, r io.ReaderAt) {
	if len(b.code) == 0 {
		b.code = codeSections(f)
	}
	for _, s := range f.Sections {
		if s.Type == elf.SHT_SYMTAB || s.Type == elf.SHT_DYNSYM {
			b.symtab = b.symtab || s.Type == elf.SHT_SYMTAB
			b.addTable(f, s, r)
		}
	}
}

func codeSections(f *elf.File) []codeRange {
	var out []codeRange
	for _, s := range f.Sections {
		if s.Flags&(elf.SHF_ALLOC|elf.SHF_EXECINSTR) == elf.SHF_ALLOC|elf.SHF_EXECINSTR && s.Addr+s.Size > s.Addr {
			out = append(out, codeRange{s.Addr, s.Addr + s.Size})
		}
	}
	slices.SortFunc(out, func(a, b codeRange) int { return cmp.Compare(a.start, b.start) })
	return out
}

// codeEnd returns where the section of code around addr ends.
func (b *builder) codeEnd(addr uint64) (uint64, bool) {
	i := sort.Search(len(b.code), func(i int) bool { return b.code[i].start > addr }) - 1
	if i < 0 || addr >= b.code[i].end {
		return 0, false
	}
	return b.code[i].end, true
}

func (b *builder) table(f *elf.File, link uint32, r io.ReaderAt) (uint8, bool) {
	if int(link) >= len(f.Sections) || len(b.tables) == 255 {
		return 0, false
	}
	s := f.Sections[link]
	if s.Type != elf.SHT_STRTAB || s.Flags&elf.SHF_COMPRESSED != 0 || s.FileSize > 1<<32-1 || s.Offset > 1<<62 {
		return 0, false
	}
	b.tables = append(b.tables, strtab{r, int64(s.Offset), int64(s.FileSize)})
	return uint8(len(b.tables) - 1), true
}

func (b *builder) addTable(f *elf.File, s *elf.Section, r io.ReaderAt) {
	if s.Flags&elf.SHF_COMPRESSED != 0 || s.Offset > 1<<62 || s.FileSize > maxScan-b.scanned {
		return
	}
	b.scanned += s.FileSize
	table, ok := b.table(f, s.Link, r)
	if !ok {
		return
	}
	const size = elf.Sym64Size
	b.symbols = slices.Grow(b.symbols, int(min(s.FileSize/size, maxSymbols-uint64(len(b.symbols)))))
	chunk := make([]byte, size*4096)
	for at := int64(0); at+size <= int64(s.FileSize); at += int64(len(chunk)) {
		want := min(int64(len(chunk)), (int64(s.FileSize)-at)/size*size)
		n, _ := r.ReadAt(chunk[:want], int64(s.Offset)+at)
		for e := chunk[:n/size*size]; len(e) > 0; e = e[size:] {
			b.addSymbol(e, table, s.Type == elf.SHT_SYMTAB)
		}
		if int64(n) < want || b.full {
			return
		}
	}
}

// addSymbol adds the Elf64_Sym e if it names code.
func (b *builder) addSymbol(e []byte, table uint8, symtab bool) {
	kind, bind := elf.ST_TYPE(e[4]), elf.ST_BIND(e[4])
	shndx := elf.SectionIndex(binary.LittleEndian.Uint16(e[6:]))
	if shndx == elf.SHN_UNDEF || shndx == elf.SHN_ABS || shndx == elf.SHN_COMMON {
		return
	}
	const ifunc = elf.STT_LOOS // STT_GNU_IFUNC
	if kind != elf.STT_FUNC && kind != ifunc && kind != elf.STT_NOTYPE {
		return
	}
	s := symbol{offset: binary.LittleEndian.Uint32(e), table: table}
	s.start = binary.LittleEndian.Uint64(e[8:])
	end, ok := b.codeEnd(s.start)
	if !ok || s.offset == 0 {
		return
	}
	s.end = s.start + min(binary.LittleEndian.Uint64(e[16:]), end-s.start)
	if kind == elf.STT_NOTYPE && bind == elf.STB_LOCAL && b.marker(s.name()) {
		return
	}
	if s.end > s.start {
		s.rank |= rankSized
	}
	if kind != elf.STT_NOTYPE {
		s.rank |= rankFunction
	}
	switch bind {
	case elf.STB_WEAK:
		s.rank |= rankWeak
	case elf.STB_LOCAL:
	default:
		s.rank |= rankGlobal
	}
	if symtab {
		s.rank |= rankSymtab
	}
	if len(b.symbols) == maxSymbols {
		b.full = true
		return
	}
	b.symbols = append(b.symbols, s)
}

// marker reports whether a label is an assembler's or, on arm64, says only
// what follows: $x for code, $d for data (ELF for the Arm 64-bit Architecture).
func (b *builder) marker(n nameRef) bool {
	name := b.tables[n.table].read(n.offset, 4)
	return strings.HasPrefix(name, "$") || strings.HasPrefix(name, ".L")
}

// build sorts the symbols out: every address gets at most one, the one that
// starts last among those that cover it.
func (b *builder) build() *symtab {
	syms := b.symbols
	slices.SortFunc(syms, func(x, y symbol) int {
		return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(x.rank, y.rank),
			cmp.Compare(y.end, x.end), cmp.Compare(x.table, y.table), cmp.Compare(x.offset, y.offset))
	})
	b.extend(syms)
	syms = b.dropTwins(syms)
	b.symbols = nil
	return &symtab{tables: b.tables, spans: flatten(syms)}
}

// extend lets each symbol without a size reach to the next one, in its
// section.
func (b *builder) extend(syms []symbol) {
	next, group := ^uint64(0), ^uint64(0) // the start of the group after, of this group
	for i := len(syms) - 1; i >= 0; i-- {
		s := &syms[i]
		if s.start != group {
			next, group = group, s.start
		}
		if s.rank&rankSized == 0 {
			if end, ok := b.codeEnd(s.start); ok {
				s.end = min(end, next)
			}
		}
	}
}

// dropTwins leaves one of the symbols with the same range: that with the highest rank,
// then with the fewest leading underscores, then the first in the alphabet.
func (b *builder) dropTwins(syms []symbol) []symbol {
	out := syms[:0]
	var name string
	for _, s := range syms {
		last := len(out) - 1
		if last < 0 || out[last].start != s.start || out[last].end != s.end {
			out, name = append(out, s), ""
			continue
		}
		if out[last].rank == s.rank {
			if name == "" {
				name = b.tables[out[last].table].read(out[last].offset, maxName)
			}
			other := b.tables[s.table].read(s.offset, maxName)
			if !preferred(other, name) {
				continue
			}
			name = other
		} else {
			name = ""
		}
		out[last] = s
	}
	return out
}

func preferred(a, b string) bool {
	underscores := func(s string) int { return len(s) - len(strings.TrimLeft(s, "_")) }
	return cmp.Or(cmp.Compare(underscores(a), underscores(b)), cmp.Compare(a, b)) < 0
}

// A spanList gathers spans, or only counts them.
type spanList struct {
	spans []span // nil to count
	n     int
	last  span
}

func (l *spanList) add(at uint64, name nameRef) {
	switch {
	case l.n > 0 && l.last.start == at:
		l.last.name = name
		if l.spans != nil {
			l.spans[l.n-1].name = name
		}
		return
	case l.last.name == name:
		return
	}
	l.n++
	l.last = span{at, name}
	if l.spans != nil {
		l.spans = append(l.spans, l.last)
	}
}

// flatten turns ranges that may nest and overlap, in order of start and then
// of rank, into spans that do not. It counts them first, so that it takes no more memory
// than they need.
func flatten(syms []symbol) []span {
	var count spanList
	count.cover(syms)
	l := spanList{spans: make([]span, 0, count.n)}
	l.cover(syms)
	return l.spans
}

func (l *spanList) cover(syms []symbol) {
	var open []*symbol
	closeUntil := func(at uint64) {
		for len(open) > 0 && open[len(open)-1].end <= at {
			end := open[len(open)-1].end
			for len(open) > 0 && open[len(open)-1].end <= end {
				open = open[:len(open)-1]
			}
			if len(open) > 0 {
				l.add(end, open[len(open)-1].name())
			} else {
				l.add(end, nameRef{})
			}
		}
	}
	for i := range syms {
		s := &syms[i]
		closeUntil(s.start)
		if !s.own() && len(open) > 0 && open[len(open)-1].own() {
			continue
		}
		open = append(open, s)
		l.add(s.start, s.name())
	}
	closeUntil(^uint64(0))
}

// lookup returns the linkage name of the symbol that covers the address.
func (t *symtab) lookup(addr uint64) (string, bool) {
	i := sort.Search(len(t.spans), func(i int) bool { return t.spans[i].start > addr }) - 1
	if i < 0 || t.spans[i].name == (nameRef{}) {
		return "", false
	}
	n := t.spans[i].name
	name := t.tables[n.table].read(n.offset, maxName)
	return name, name != ""
}

// read returns the name at an offset of the table, cut at max bytes; "" if
// there is none.
func (t strtab) read(offset uint32, max int) string {
	left := t.size - int64(offset)
	if left <= 0 {
		return ""
	}
	var short [128]byte
	for buf := short[:min(len(short), max)]; ; {
		buf = buf[:min(int64(len(buf)), left)]
		n, _ := t.r.ReadAt(buf, t.offset+int64(offset))
		if end := bytes.IndexByte(buf[:n], 0); end >= 0 {
			return string(buf[:end])
		}
		if n < len(buf) || len(buf) >= max || int64(len(buf)) == left {
			return string(buf[:n])
		}
		buf = make([]byte, min(max, 8*len(buf)))
	}
}
