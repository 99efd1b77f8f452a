package web

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// maxName bounds a name, in bytes.
const maxName = 4000

// Clean returns a name as pages have it: cut, and without characters that do not print.
func Clean(s string) string {
	return render.Cut(s, maxName)
}

// Package html has a table of 2,200 named characters, which a linker keeps.
var escapes = strings.NewReplacer("\x00", "\ufffd", "&", "&amp;", "'", "&#39;", "<", "&lt;", ">", "&gt;", `"`, "&#34;")

// Escape returns text as markup. No page can have a NUL.
func Escape(text string) string { return escapes.Replace(text) }

// Stacks are call stacks as a tree for a page, where names are indexes into Strings.
type Stacks struct {
	Strings []string `json:"strings"`
	Frames  [][3]int `json:"frames"` // short name, function, file and line
	Nodes   [][2]int `json:"nodes"`  // parent, frame: both are smaller, and the first has none

	max     int
	strings render.Index[string]
	frames  render.Index[[3]int]
	nodes   render.Index[[2]int]
	known   map[*snapshot.Location][]int // frames of its lines
}

// NewStacks returns a tree of its root alone, which has room for so many nodes.
func NewStacks(maxNodes int) *Stacks {
	root := [2]int{-1, 0} // no other node has this parent
	s := &Stacks{max: maxNodes, strings: render.Index[string]{}, frames: render.Index[[3]int]{}, nodes: render.Index[[2]int]{root: 0}, known: map[*snapshot.Location][]int{}, Nodes: [][2]int{{0, 0}}}
	s.Text("")
	s.frame("", "", "")
	return s
}

// Text returns the index of a name.
func (s *Stacks) Text(text string) int {
	text = Clean(text)
	i, fresh := s.strings.Number(text)
	if fresh {
		s.Strings = append(s.Strings, text)
	}
	return i
}

func (s *Stacks) frame(short, function, where string) int {
	key := [3]int{s.Text(short), s.Text(function), s.Text(where)}
	i, fresh := s.frames.Number(key)
	if fresh {
		s.Frames = append(s.Frames, key)
	}
	return i
}

// Stack returns the node of a stack's leaf, or, if there is no room for it, of the frame
// up to which there is.
func (s *Stacks) Stack(stack []*snapshot.Location) (node int, whole bool) {
	for _, l := range slices.Backward(stack) {
		for _, frame := range slices.Backward(s.lines(l)) {
			next, ok := s.below(node, frame)
			if !ok {
				return node, false
			}
			node = next
		}
	}
	return node, true
}

// lines returns the frames of a place's lines.
func (s *Stacks) lines(l *snapshot.Location) []int {
	if frames, ok := s.known[l]; ok {
		return frames
	}
	frames := make([]int, len(l.Lines))
	for i := len(l.Lines) - 1; i >= 0; i-- {
		line := &l.Lines[i]
		where := render.Where(line.File, line.Line)
		if where == "" && l.Mapping != nil {
			where = l.Mapping.Path
		}
		frames[i] = s.frame(render.Name(line), line.Function, where)
	}
	s.known[l] = frames
	return frames
}

// below returns the node of a frame that another called, and whether there is room for it.
func (s *Stacks) below(parent, frame int) (at int, ok bool) {
	key := [2]int{parent, frame}
	if at, ok = s.nodes[key]; ok || len(s.Nodes) >= s.max {
		return at, ok
	}
	s.Nodes = append(s.Nodes, key)
	at, _ = s.nodes.Number(key)
	return at, true
}
