package symbolize

import (
	"debug/elf"
	"debug/gosym"
	"encoding/binary"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// maxGoTable bounds .gopclntab, which the Go linker writes into stripped
// programs too.
const maxGoTable = 64 << 20

// A goTable names the functions of a Go program.
type goTable struct {
	table *gosym.Table
	size  int64
}

// loadGo returns nil for what is no Go program.
func loadGo(f *elf.File) (g *goTable) {
	defer func() { // debug/gosym on hostile input
		if recover() != nil {
			g = nil
		}
	}()
	pcln := f.Section(".gopclntab")
	b, err := proc.SectionData(pcln, maxGoTable)
	if err != nil {
		return nil
	}
	text, ok := goText(f, pcln.Addr)
	if !ok {
		return nil
	}
	t, err := gosym.NewTable(nil, gosym.NewLineTable(b, text))
	if err != nil || len(t.Funcs) == 0 {
		return nil
	}
	return &goTable{t, int64(len(b)) + int64(len(t.Funcs))*160}
}

// goText returns the address that the table's are relative to, runtime.text.
// With C code in the program that is not where .text starts; the runtime's
// module data has it (runtime.moduledata, of Go 1.18 and later: pcHeader first,
// text after the words and slices in between).
func goText(f *elf.File, header uint64) (uint64, bool) {
	const textAt = 8 + 6*24 + 3*8
	for _, name := range []string{".go.module", ".noptrdata", ".data", ".data.rel.ro"} {
		b, err := proc.SectionData(f.Section(name), maxGoTable)
		if err != nil {
			continue
		}
		word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
		for at := 0; at+textAt+8 <= len(b); at += 8 {
			if word(at) != header {
				continue
			}
			low, high, text := word(at+textAt-16), word(at+textAt-8), word(at+textAt)
			if text <= low && low < high {
				return text, true
			}
		}
	}
	return 0, false
}

// lookup returns the function at addr and its line. A nil table has none.
func (g *goTable) lookup(addr uint64) (line snapshot.Line, ok bool) {
	if g == nil {
		return line, false
	}
	defer func() {
		if recover() != nil {
			line, ok = snapshot.Line{}, false
		}
	}()
	file, n, fn := g.table.PCToLine(addr)
	if fn == nil || fn.Name == "" {
		return line, false
	}
	return snapshot.Line{Function: cut(fn.Name), File: cut(file), Line: n}, true
}
