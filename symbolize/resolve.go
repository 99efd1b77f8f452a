package symbolize

import (
	"debug/elf"
	"fmt"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Resolve names the functions at an address. Do not change the result.
func (s *Symbolizer) Resolve(a Address) *snapshot.Location {
	lines, why := s.name(a)
	s.unnamed(why)
	return a.location(lines)
}

// Retry looks up an address again, for which Resolve returned old without a final name. It
// returns old if there still is no name.
func (s *Symbolizer) Retry(a Address, old *snapshot.Location) *snapshot.Location {
	lines, why := s.name(a)
	if why != none {
		return old
	}
	return a.location(lines)
}

func (a Address) location(lines []snapshot.Line) *snapshot.Location {
	if a.region != nil && a.region.mapping != nil {
		// Others read the mapping from now on: HasLines does not change any more.
		a.region.mapping.linesSet.Do(func() {})
	}
	return &snapshot.Location{Address: a.pc, Mapping: a.mapped(), Lines: lines}
}

// Final reports whether l, a result for the address, cannot improve. A file that did not
// answer may do so later, and a just-in-time compiler may still name its code.
func (a Address) Final(l *snapshot.Location) bool {
	why := l.Lines[0].Reason
	return why == "" || why != fileSlow.String() && (a.region == nil || a.region.perf == nil)
}

// name returns the lines of a and why they hold no name.
func (s *Symbolizer) name(a Address) ([]snapshot.Line, reason) {
	if a.region == nil {
		return unnamed("[unknown]", a.reason)
	}
	at := a.pc
	if a.lookup == Return {
		at--
	}
	r := a.region
	if r.image == nil {
		if name, ok := r.perf.lookup(at); ok {
			return []snapshot.Line{{Function: name}}, none
		}
		if r.mapping == nil {
			return unnamed("[anon]", anonymous)
		}
		return unnamed(fmt.Sprintf("%s+%#x", r.base(), a.offset()), r.reason)
	}
	shift := a.pc - at
	offset := a.offset() - shift
	addr, ok := virtual(r.image.elf.File, offset)
	if r.Path == vdsoPath {
		addr, ok = virtual(r.image.elf.File, at-r.Start)
	}
	if !ok {
		return unnamed(fmt.Sprintf("%s+%#x", r.base(), a.offset()), outsideSegments)
	}
	lines, reason := r.image.resolveSoon(addr, r.mapping)
	if reason != none {
		return unnamed(fmt.Sprintf("%s+%#x", r.base(), addr+shift), reason)
	}
	return lines, none
}

func (r *region) base() string {
	path := r.mapping.Path
	return path[strings.LastIndexByte(path, '/')+1:]
}

func unnamed(function string, why reason) ([]snapshot.Line, reason) {
	return []snapshot.Line{{Function: function, Reason: why.String()}}, why
}

// otherPatience is the limit for all files while another file exceeds its limit: they may
// be in the same file system.
const otherPatience = time.Second

// resolveSoon is resolve with a time limit. While a read of a file exceeds the limit, later
// calls for the same file fail at once.
func (im *image) resolveSoon(addr uint64, m *mapping) ([]snapshot.Line, reason) {
	if im.slow.Load() > 0 {
		return nil, fileSlow
	}
	patience := im.s.cfg.readPatience
	if im.s.slow.Load() > 0 {
		patience = min(patience, otherPatience)
	}
	var lines []snapshot.Line
	var reason reason
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines, reason = im.resolve(addr, m)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return lines, reason
	case <-timer.C:
	}
	im.slow.Add(1)
	im.s.slow.Add(1)
	go func() {
		<-done
		im.slow.Add(-1)
		im.s.slow.Add(-1)
	}()
	return nil, fileSlow
}

// resolve names the functions at a virtual address of the file, innermost
// inlined first.
func (im *image) resolve(addr uint64, m *mapping) ([]snapshot.Line, reason) {
	im.mu.Lock()
	im.load()
	if im.syms == nil {
		defer im.mu.Unlock()
		return nil, im.reason
	}
	m.linesSet.Do(func() { m.HasLines = im.lines != nil || im.goTab != nil })
	linkage, named := im.syms.lookup(addr)
	var lines []snapshot.Line
	if im.lines != nil {
		lines = im.lines.lookup(addr, linkage)
	}
	if len(lines) == 0 && !named {
		if l, ok := im.goTab.lookup(addr); ok {
			lines = []snapshot.Line{l}
		}
	}
	im.measure()
	cost, reason, took := im.cost, im.reason, im.took
	im.took = 0
	im.mu.Unlock()
	im.s.indexes.use(im, cost, took)

	switch {
	case len(lines) > 0:
		return lines, none
	case named:
		return []snapshot.Line{functionLine(linkage)}, none
	case reason == none:
		reason = noSymbol
		if im.closed.Load() {
			reason = fileClosed
		}
	}
	return nil, reason
}

// functionLine returns a line with the readable form of a linkage name.
func functionLine(linkage string) snapshot.Line {
	l := snapshot.Line{Function: readable(linkage)}
	if l.Function != linkage {
		l.System = cut(linkage)
	}
	return l
}

// virtual turns a file offset into the address that the file's symbols and
// debug information use.
func virtual(f *elf.File, off uint64) (uint64, bool) {
	const page = 1 << 12
	for _, slack := range []uint64{0, page - 1} { // segments are mapped in whole pages
		for _, executable := range []elf.ProgFlag{elf.PF_X, 0} {
			for _, p := range f.Progs {
				if p.Type != elf.PT_LOAD || p.Flags&executable != executable {
					continue
				}
				if off >= p.Off&^slack && off-p.Off&^slack < p.Filesz+p.Off-p.Off&^slack+slack {
					return p.Vaddr + (off - p.Off), true
				}
			}
		}
	}
	return 0, false
}
