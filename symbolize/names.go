package symbolize

import (
	"debug/dwarf"
	"strings"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// maxName bounds a name as a file has it; libtorch's longest have some ten
// thousand bytes.
const maxName = 1 << 15

// maxShown bounds a name as it is returned, in bytes.
const maxShown = 1 << 10

// readable returns the function that a linkage name stands for. A name that is
// not mangled stays as it is.
func readable(linkage string) string { return cut(snapshot.Demangle(linkage)) }

func cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	end := maxShown
	for end > maxShown-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// name returns the function of an entry. The symbol, if not "", is the one
// that covers the function: where the debug information has no linkage name,
// as for functions in anonymous namespaces, it names the enclosing scopes.
func (u *unit) name(d *dwarf.Data, off dwarf.Offset, symbol string) snapshot.Line {
	linkage, plain, scope := u.names(d, off)
	switch {
	case linkage != "":
		return functionLine(linkage)
	case symbol != "" && plain != "" && strings.HasPrefix(symbol, plain+"."): // a C function's .cold, .part.0
		return snapshot.Line{Function: cut(plain), System: cut(symbol)}
	case symbol != "":
		return functionLine(symbol)
	case plain == "":
		return snapshot.Line{Function: "[inlined]"}
	}
	return snapshot.Line{Function: cut(enclose(scope, simple(plain))), System: cut(plain)}
}

// names returns what an entry is called, which its abstract instance or its
// declaration may hold, and what encloses that.
func (u *unit) names(d *dwarf.Data, off dwarf.Offset) (linkage, plain, scope string) {
	r := d.Reader()
	for range 8 {
		r.Seek(off)
		e, err := r.Next()
		if err != nil || e == nil {
			break
		}
		if linkage = linkageName(e); linkage != "" {
			return linkage, plain, scope
		}
		if s, ok := e.Val(dwarf.AttrName).(string); ok && plain == "" {
			plain = s
		}
		if s, ok := u.scopes[off]; ok {
			scope = s // the declaration's is the one that counts
		}
		next, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
		if !ok {
			next, ok = e.Val(dwarf.AttrSpecification).(dwarf.Offset)
		}
		if !ok {
			break
		}
		off = next
	}
	return "", plain, scope
}

func linkageName(e *dwarf.Entry) string {
	const mipsLinkageName = dwarf.Attr(0x2007) // before DWARF 4
	for _, a := range []dwarf.Attr{dwarf.AttrLinkageName, mipsLinkageName} {
		if s, ok := e.Val(a).(string); ok && s != "" {
			return s
		}
	}
	return ""
}

// scopeName returns how a namespace, a type or a function shows in the names
// of what it encloses.
func scopeName(e *dwarf.Entry) string {
	if s := linkageName(e); s != "" {
		return readable(s)
	}
	if s, ok := e.Val(dwarf.AttrName).(string); ok && s != "" {
		return simple(s)
	}
	if e.Tag == dwarf.TagNamespace {
		return "(anonymous namespace)"
	}
	return "{unnamed}"
}

// simple drops the template arguments of a name in source form, as readable
// does for linkage names.
func simple(name string) string {
	if strings.HasPrefix(name, "<lambda") {
		return "{lambda}"
	}
	if strings.HasPrefix(name, "operator") {
		return name
	}
	if i := strings.IndexByte(name, '<'); i > 0 {
		return name[:i]
	}
	return name
}
