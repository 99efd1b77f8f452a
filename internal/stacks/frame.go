package stacks

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// interpreted reports whether l is an interpreter's frame: it has a file and
// no address.
func interpreted(l *snapshot.Location) bool {
	return l.Address == 0 && l.Mapping == nil && len(l.Lines) > 0 && l.Lines[0].File != ""
}

// synthetic reports whether l is a name that this tool put on the stack, such
// as the driver call at its leaf.
func synthetic(l *snapshot.Location) bool {
	return l.Address == 0 && l.Mapping == nil && !interpreted(l)
}

// mappedFile returns the base name of the file that l's address is in, "" for
// none.
func mappedFile(l *snapshot.Location) string {
	if l.Mapping == nil {
		return ""
	}
	return l.Mapping.Path[strings.LastIndexByte(l.Mapping.Path, '/')+1:]
}

// interpreterFile reports whether a file holds CPython itself: python3.12,
// libpython3.12.so.1.0.
func interpreterFile(base string) bool {
	rest, library := strings.CutPrefix(base, "libpython")
	if !library {
		var ok bool
		if rest, ok = strings.CutPrefix(base, "python"); !ok {
			return false
		}
	}
	rest = strings.TrimLeft(strings.TrimLeft(rest, "0123456789."), "dmt.") // ABI flags
	return rest == "" || library && strings.HasPrefix(rest, "so")
}

// libraryFile reports whether a base name is a shared object's.
func libraryFile(base string) bool {
	return strings.HasSuffix(base, ".so") || strings.Contains(base, ".so.")
}
