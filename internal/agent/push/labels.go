package push

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A Label is one of those that distinguish series.
type Label struct{ Name, Value string }

// Names of labels.
const (
	labelService = "service_name"
	labelProcess = "process"
	labelPID     = "pid"
)

const (
	maxLabels = 24  // Pyroscope takes 30, with its own
	maxName   = 64  // bytes
	maxValue  = 256 // bytes
)

// SeriesLabels returns the labels of a process, by name: more, and what it is called. A
// name is of letters, digits and underscores, as Prometheus's are, and none begins with
// two underscores; a value is text that prints. It also returns how many of more were
// left out or cut. Those without a value are absent.
func SeriesLabels(more []Label, process string, pid uint32) (out []Label, cut int) {
	add := func(name, value string) {
		whole := true
		name, value = labelName(name), render.Clean(value)
		if value == "" {
			return
		}
		if len(value) > maxValue {
			value, whole = shorten(value), false
		}
		taken := slices.ContainsFunc(out, func(l Label) bool { return l.Name == name })
		if name == "" || taken || len(out) == maxLabels {
			cut++
			return
		}
		if !whole {
			cut++
		}
		out = append(out, Label{name, value})
	}
	add(labelPID, strconv.FormatUint(uint64(pid), 10))
	add(labelProcess, process)
	service := cmp.Or(process, "unknown") // a store must have one
	for _, l := range more {
		if l.Name == labelService {
			service = cmp.Or(l.Value, service)
		}
	}
	add(labelService, service)
	for _, l := range more {
		if l.Name != labelService {
			add(l.Name, l.Value)
		}
	}
	slices.SortFunc(out, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	return out, cut
}

// labelName returns name with an underscore for each character that it must not have,
// "" for one that cannot be.
func labelName(name string) string {
	if name == "" || len(name) > maxName || strings.HasPrefix(name, "__") {
		return ""
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, name)
	if name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	if strings.HasPrefix(name, "__") {
		return ""
	}
	return name
}

// shorten returns the beginning of s, of maxValue bytes at most.
func shorten(s string) string {
	const more = "…"
	end := maxValue - len(more)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}
