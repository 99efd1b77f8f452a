package probes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Notes are sentences on what may be missing: events that found no room, calls from
// before a library had probes, and functions that libraries do not export, once for all
// that lack the same.
func (t *Tracer) Notes() (notes []string) {
	notes = t.lostNotes()
	if gap := t.longestGap(); gap > 0 {
		notes = append(notes, fmt.Sprintf("a library was mapped up to %.1f ms before it had probes: calls in that time are missed", gap.Seconds()*1e3))
	}
	lacking := map[string][]string{} // paths by what they lack
	missing := t.missing()
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		lack := join(missing[path])
		lacking[lack] = append(lacking[lack], path)
	}
	for _, lack := range slices.Sorted(maps.Keys(lacking)) {
		paths := lacking[lack]
		who := paths[0]
		if n := len(paths) - 1; n > 0 {
			who += fmt.Sprintf(" (and %d more)", n)
		}
		notes = append(notes, who+" does not export "+lack)
	}
	return notes
}

// longestGap is the longest time between the mapping of a library and its
// probes, 0 if every library had them in time.
func (t *Tracer) longestGap() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.longest
}

// missing returns, by library path, the symbols of the table that a probed
// library does not export.
func (t *Tracer) missing() map[string][]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string][]string{}
	for _, a := range t.libs.table {
		if len(a.missing) > 0 {
			out[a.library.Path] = a.missing
		}
	}
	return out
}

// join lists names, and counts those past the tenth.
func join(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
