package symbolize

import (
	"cmp"
	"debug/dwarf"
	"errors"
	"io"
	"path"
	"slices"
	"sort"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

const (
	maxRows  = 1 << 21
	maxFuncs = 1 << 20
	maxDepth = 256 // of inlined functions shown at one address

	maxNesting = 1 << 10 // of entries
)

// A unit is what one compile unit says of its code.
type unit struct {
	rows  []row // of the line table, in order of address
	files []string
	subs  []sub // in order of start
	funcs []function
	// scopes are what encloses the functions that are in something; they have
	// it in their names only if there is a linkage name.
	scopes map[dwarf.Offset]string
}

// A row says which line the addresses from addr to the next row's come from.
type row struct {
	addr uint64
	file int32
	line int32 // -1 ends a sequence
}

// A sub is one range of a function that is not inlined.
type sub struct {
	start, end  uint64
	first, last int32 // its part of funcs, itself first
}

// A function is one range of a function or of an inlined copy of it. One that
// is inlined in another comes after it.
type function struct {
	start, end uint64
	entry      dwarf.Offset
	callFile   int32
	callLine   int32
}

func (u *unit) cost() int64 {
	return int64(len(u.rows))*16 + int64(len(u.subs))*24 + int64(len(u.funcs))*40 + int64(len(u.files)+len(u.scopes))*64
}

func parseUnit(d *dwarf.Data, off dwarf.Offset) *unit {
	r := d.Reader()
	r.Seek(off)
	cu, err := r.Next()
	if err != nil || cu == nil {
		return nil
	}
	u := &unit{scopes: make(map[dwarf.Offset]string)}
	if !u.readLines(d, cu) || cu.Children && !u.readFunctions(d, r) {
		return nil
	}
	return u
}

func (u *unit) readLines(d *dwarf.Data, cu *dwarf.Entry) bool {
	lr, err := d.LineReader(cu)
	if err != nil {
		return false
	}
	if lr == nil {
		return true
	}
	index := make(map[*dwarf.LineFile]int32)
	var e dwarf.LineEntry
	for {
		if err := lr.Next(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil || len(u.rows) == maxRows {
			return false
		}
		w := row{addr: e.Address, line: int32(min(e.Line, 1<<31-1)), file: -1}
		if e.EndSequence {
			w.line = -1
		}
		if e.File != nil {
			n, ok := index[e.File]
			if !ok {
				n = int32(len(index))
				index[e.File] = n
			}
			w.file = n
		}
		u.rows = append(u.rows, w)
	}
	// The reader adds files as a program defines them: the indices of calls
	// are into the list at the end.
	files := lr.Files()
	u.files = make([]string, len(files))
	renumber := make(map[int32]int32)
	for i, f := range files {
		if f != nil {
			name := f.Name // of DWARF 5, the reader leaves relative directories so
			if dir, ok := cu.Val(dwarf.AttrCompDir).(string); ok && !path.IsAbs(name) {
				name = path.Join(dir, name)
			}
			u.files[i] = cut(name)
			if n, ok := index[f]; ok {
				if _, dup := renumber[n]; !dup {
					renumber[n] = int32(i)
				}
			}
		}
	}
	for i := range u.rows {
		n, ok := renumber[u.rows[i].file]
		if !ok {
			n = -1
		}
		u.rows[i].file = n
	}
	// The end of a sequence gives way to a sequence that starts there.
	sorting.Stable(u.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(min(a.line, 0), min(b.line, 0)))
	})
	return true
}

// readFunctions reads the entries below the unit's own.
func (u *unit) readFunctions(d *dwarf.Data, r *dwarf.Reader) bool {
	deadline := time.Now().Add(maxUnitTime)
	scope := []string{""} // around the next entry, by depth
	outer := 0            // the depth of the function that is open, 0 for none
	var around []sub      // the ranges of that function
	finish := func() {
		for i := range around {
			around[i].last = int32(len(u.funcs))
		}
		u.subs = append(u.subs, around...)
		around, outer = nil, 0
	}
	for n := 0; len(scope) > 0; n++ {
		e, err := r.Next()
		if err != nil || e == nil || len(u.funcs) >= maxFuncs || len(scope) > maxNesting || n&0xffff == 0xffff && time.Now().After(deadline) {
			return false
		}
		depth := len(scope)
		if e.Tag == 0 {
			if scope = scope[:depth-1]; len(scope) == outer {
				finish()
			}
			continue
		}
		inner := scope[depth-1]
		switch e.Tag {
		case dwarf.TagNamespace, dwarf.TagClassType, dwarf.TagStructType, dwarf.TagUnionType:
			if e.Children {
				inner = enclose(inner, scopeName(e))
			}
		case dwarf.TagSubprogram:
			if inner != "" {
				u.scopes[e.Offset] = inner
			}
			if e.Children {
				inner = enclose(inner, scopeName(e))
			}
			fallthrough
		case dwarf.TagInlinedSubroutine:
			pcs, err := d.Ranges(e)
			if err != nil {
				return false
			}
			first := int32(len(u.funcs))
			for _, pc := range pcs {
				if pc[1] <= pc[0] {
					continue
				}
				u.funcs = append(u.funcs, function{
					start: pc[0], end: pc[1], entry: e.Offset,
					callFile: number(e, dwarf.AttrCallFile), callLine: number(e, dwarf.AttrCallLine),
				})
				if outer == 0 {
					around = append(around, sub{start: pc[0], end: pc[1], first: first})
				}
			}
			if outer == 0 && len(around) > 0 {
				if outer = depth; !e.Children {
					finish()
				}
			}
		}
		if e.Children {
			scope = append(scope, inner)
		}
	}
	sorting.Stable(u.subs, func(a, b sub) int { return cmp.Compare(a.start, b.start) })
	return true
}

// enclose appends a name to a scope, within bounds.
func enclose(scope, name string) string {
	if scope == "" {
		return name
	}
	if len(scope) > maxShown {
		return scope
	}
	return scope + "::" + name
}

func number(e *dwarf.Entry, a dwarf.Attr) int32 {
	n, _ := e.Val(a).(int64)
	return int32(max(0, min(n, 1<<31-1)))
}

// lines returns the functions at addr, innermost inlined first.
func (u *unit) lines(d *dwarf.Data, addr uint64, symbol string) []snapshot.Line {
	file, line := u.line(addr)
	var out []snapshot.Line // outermost first
	i := sort.Search(len(u.subs), func(i int) bool { return u.subs[i].start > addr }) - 1
	if i < 0 || addr >= u.subs[i].end {
		if line == 0 || symbol == "" {
			return nil
		}
		l := functionLine(symbol)
		l.File, l.Line = file, line
		return []snapshot.Line{l}
	}
	var calls []function
	for _, f := range u.funcs[u.subs[i].first:u.subs[i].last] {
		if f.start <= addr && addr < f.end && len(calls) < maxDepth {
			calls = append(calls, f)
		}
	}
	for k, f := range calls {
		if k > 0 {
			symbol = ""
		}
		l := u.name(d, f.entry, symbol)
		if k+1 < len(calls) {
			l.File, l.Line = u.file(calls[k+1].callFile), int(calls[k+1].callLine)
		} else {
			l.File, l.Line = file, line
		}
		out = append(out, l)
	}
	slices.Reverse(out)
	return out
}

func (u *unit) file(n int32) string {
	if n < 0 || int(n) >= len(u.files) {
		return ""
	}
	return u.files[n]
}

// line returns the source line at addr, "" and 0 for none.
func (u *unit) line(addr uint64) (string, int) {
	i := sort.Search(len(u.rows), func(i int) bool { return u.rows[i].addr > addr }) - 1
	if i < 0 || u.rows[i].line <= 0 {
		return "", 0
	}
	return u.file(u.rows[i].file), int(u.rows[i].line)
}
