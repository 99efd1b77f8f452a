package symbolize

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Limits on one image's debug information, beside Config.MaxDebug.
const (
	maxUnitRanges = 1 << 21
	maxUnitTime   = 10 * time.Second // to index all units, or to parse one
	maxUnitCost   = 64 << 20         // bytes of parsed units in memory
)

// dwarfSections are what lines and inlined functions need; false may be
// missing.
var dwarfSections = map[string]bool{
	"info": true, "abbrev": true, "line": true,
	"str": false, "ranges": false, "addr": false, "line_str": false, "str_offsets": false, "rnglists": false,
}

func hasDwarf(f *elf.File) bool {
	for name, must := range dwarfSections {
		if s := dwarfSection(f, name); must && (s == nil || s.Type == elf.SHT_NOBITS) {
			return false
		}
	}
	return true
}

func dwarfSection(f *elf.File, name string) *elf.Section {
	return f.Section(".debug_" + name)
}

// A dwarfIndex finds the compile unit of an address, and parses a unit when an
// address in it is wanted.
type dwarfIndex struct {
	data   *dwarf.Data
	ranges []unitRange // in order of start; later ones do not end before
	units  map[dwarf.Offset]*unit
	parsed int64 // bytes of units
	size   int64 // bytes of all
	base   int64 // bytes of sections and ranges
}

type unitRange struct {
	start, end uint64
	maxEnd     uint64 // of this and all before
	unit       dwarf.Offset
}

// loadDwarf returns nil if there is no debug information or it is no good.
func (im *image) loadDwarf() *dwarfIndex {
	files := []*elf.File{im.elf.File}
	for _, d := range im.debug {
		files = append(files, d.elf.File)
	}
	for _, f := range files {
		if !hasDwarf(f) {
			continue
		}
		x, err := newDwarfIndex(f, im.s.cfg.maxDebug)
		if err == nil {
			return x
		}
		if im.blamed {
			continue
		}
		im.blamed = true
		if errors.Is(err, proc.ErrTooLarge) {
			im.s.loss.Add(lossDebugTooLarge, 1)
		} else {
			im.s.loss.Add(lossDebugMalformed, 1)
		}
	}
	return nil
}

// newDwarfIndex reads at most max bytes of debug information.
func newDwarfIndex(f *elf.File, max uint64) (x *dwarfIndex, err error) {
	defer func() { // debug/dwarf on hostile input
		if p := recover(); p != nil {
			x, err = nil, fmt.Errorf("read debug information: %v", p)
		}
	}()
	dat := make(map[string][]byte)
	var total uint64
	for name := range dwarfSections {
		s := dwarfSection(f, name)
		if s == nil {
			continue
		}
		if total += s.Size; s.Size > max || total > max {
			return nil, proc.ErrTooLarge
		}
		if dat[name], err = proc.SectionData(s, max); err != nil {
			return nil, fmt.Errorf("read debug information: %w", err)
		}
	}
	d, err := dwarf.New(dat["abbrev"], nil, nil, dat["info"], dat["line"], nil, dat["ranges"], dat["str"])
	if err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	for _, name := range []string{"addr", "line_str", "str_offsets", "rnglists"} {
		if err := d.AddSection(".debug_"+name, dat[name]); err != nil {
			return nil, fmt.Errorf("read debug information: %w", err)
		}
	}
	x = &dwarfIndex{data: d, units: make(map[dwarf.Offset]*unit)}
	if err := x.index(unitOffsets(dat["info"])); err != nil {
		return nil, err
	}
	x.base = int64(total) + int64(len(x.ranges))*32
	x.size = x.base
	return x, nil
}

// unitOffsets returns where the first entry of each compile unit is in
// .debug_info (DWARF 5, section 7.5.1).
func unitOffsets(info []byte) []dwarf.Offset {
	const typeUnit, splitType = 0x02, 0x06
	var out []dwarf.Offset
	for at := uint64(0); at+12 <= uint64(len(info)); {
		length, head, wide := uint64(binary.LittleEndian.Uint32(info[at:])), at+4, uint64(4)
		if length == 0xffffffff {
			length, head, wide = binary.LittleEndian.Uint64(info[at+4:]), at+12, 8
		}
		if length > uint64(len(info))-head || length < 8 {
			return out
		}
		version := binary.LittleEndian.Uint16(info[head:])
		entry := head + 2 + wide + 1 // version, abbreviations, address size
		if version >= 5 {
			switch info[head+2] {
			case typeUnit, splitType:
				entry = 0
			case 0x04, 0x05: // skeleton, split compile: an id more
				entry += 1 + 8
			default:
				entry++
			}
		}
		if entry != 0 {
			out = append(out, dwarf.Offset(entry))
		}
		at = head + length
	}
	return out
}

func (x *dwarfIndex) index(units []dwarf.Offset) error {
	deadline := time.Now().Add(maxUnitTime)
	r := x.data.Reader()
	for _, off := range units {
		if time.Now().After(deadline) {
			return proc.ErrTooLarge
		}
		r.Seek(off)
		e, err := r.Next()
		if err != nil || e == nil || e.Tag != dwarf.TagCompileUnit && e.Tag != dwarf.TagSkeletonUnit {
			continue
		}
		pcs, err := x.data.Ranges(e)
		if err != nil {
			continue
		}
		if len(x.ranges)+len(pcs) > maxUnitRanges {
			return proc.ErrTooLarge
		}
		for _, pc := range pcs {
			if pc[1] > pc[0] {
				x.ranges = append(x.ranges, unitRange{start: pc[0], end: pc[1], unit: off})
			}
		}
	}
	sorting.Stable(x.ranges, func(a, b unitRange) int { return cmp.Compare(a.start, b.start) })
	var end uint64
	for i := range x.ranges {
		end = max(end, x.ranges[i].end)
		x.ranges[i].maxEnd = end
	}
	return nil
}

// lookup returns the functions at addr, innermost inlined first, with their
// lines; nil if the debug information does not cover it. The symbol there
// names a function that the debug information has no linkage name for.
func (x *dwarfIndex) lookup(addr uint64, symbol string) (lines []snapshot.Line) {
	defer func() { // debug/dwarf on hostile input
		if recover() != nil {
			lines = nil
		}
	}()
	const walk = 64
	last := sort.Search(len(x.ranges), func(i int) bool { return x.ranges[i].start > addr }) - 1
	for i := last; i >= 0 && i > last-walk && x.ranges[i].maxEnd > addr; i-- {
		if addr < x.ranges[i].end {
			if u := x.unit(x.ranges[i].unit); u != nil {
				return u.lines(x.data, addr, symbol)
			}
		}
	}
	return nil
}

// unit returns the parsed unit, nil if it cannot be parsed.
func (x *dwarfIndex) unit(off dwarf.Offset) *unit {
	if u, ok := x.units[off]; ok {
		return u
	}
	u := parseUnit(x.data, off)
	if u != nil {
		x.parsed += u.cost()
	}
	if x.parsed > maxUnitCost {
		clear(x.units)
		x.parsed = 0
		if u != nil {
			x.parsed = u.cost()
		}
	}
	x.units[off] = u
	x.size = x.base + x.parsed
	return u
}
