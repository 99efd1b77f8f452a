package web

import (
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// maxName bounds a name, in characters.
const maxName = 1000

// Clean returns a name as pages have it: cut, and without what does not print.
func Clean(s string) string {
	if len(s) > maxName {
		if r := []rune(s[:min(len(s), 4*maxName)]); len(r) > maxName {
			s = string(r[:maxName]) + "…"
		}
	}
	return render.Clean(s)
}

// Stacks are call stacks as a tree for a page, where names are indexes into Strings.
type Stacks struct {
	Strings []string `json:"strings"`
	Frames  [][3]int `json:"frames"` // short name, function, file and line
	Nodes   [][2]int `json:"nodes"`  // parent, frame: both are smaller, and the first has none

	max     int
	strings map[string]int
	frames  map[frame]int
	nodes   map[node]int
}

type (
	frame struct{ short, function, where int }
	node  struct{ parent, frame int }
)

// NewStacks returns a tree of its root alone, which has room for so many nodes.
func NewStacks(maxNodes int) *Stacks {
	s := &Stacks{max: maxNodes, strings: map[string]int{}, frames: map[frame]int{}, nodes: map[node]int{}, Nodes: [][2]int{{0, 0}}}
	s.Text("")
	s.frame("", "", "")
	return s
}

// Text returns the index of a name.
func (s *Stacks) Text(text string) int {
	text = Clean(text)
	i, ok := s.strings[text]
	if !ok {
		i = len(s.Strings)
		s.strings[text] = i
		s.Strings = append(s.Strings, text)
	}
	return i
}

func (s *Stacks) frame(short, function, where string) int {
	key := frame{s.Text(short), s.Text(function), s.Text(where)}
	i, ok := s.frames[key]
	if !ok {
		i = len(s.Frames)
		s.frames[key] = i
		s.Frames = append(s.Frames, [3]int{key.short, key.function, key.where})
	}
	return i
}

// Stack returns the node of a stack's leaf, or, if there is no room for it, of the frame
// up to which there is.
func (s *Stacks) Stack(stack []*snapshot.Location) (node int, whole bool) {
	for _, l := range slices.Backward(stack) {
		for i := len(l.Lines) - 1; i >= 0; i-- {
			line := &l.Lines[i]
			where := line.File
			if line.Line > 0 {
				where = fmt.Sprintf("%s:%d", line.File, line.Line)
			}
			if where == "" && l.Mapping != nil {
				where = l.Mapping.Path
			}
			next, ok := s.below(node, s.frame(render.Name(line), line.Function, where))
			if !ok {
				return node, false
			}
			node = next
		}
	}
	return node, true
}

// below returns the node of a frame that another called, and whether there is room for it.
func (s *Stacks) below(parent, frame int) (at int, ok bool) {
	key := node{parent, frame}
	at, ok = s.nodes[key]
	if !ok {
		if len(s.Nodes) >= s.max {
			return 0, false
		}
		at = len(s.Nodes)
		s.nodes[key] = at
		s.Nodes = append(s.Nodes, [2]int{parent, frame})
	}
	return at, true
}
