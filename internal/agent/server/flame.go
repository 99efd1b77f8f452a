package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

// maxNodes bounds the nodes of a flame graph. Stacks that begin alike share nodes.
const maxNodes = 20_000

// A flame is the memory in use on GPUs by stack, for the page.
type flame struct {
	*web.Stacks
	// Rows are the leaves: the node of each, and the bytes that it holds.
	Rows struct {
		Node  []int   `json:"node"`
		Bytes []int64 `json:"bytes"`
	} `json:"rows"`
}

// flameOf returns the flame of a snapshot. If there are too many stacks, one frame stands for
// those that hold least, and gives their number.
func flameOf(s *snapshot.Snapshot) *flame {
	out := &flame{Stacks: web.NewStacks(maxNodes)}
	held := make([]*snapshot.Sample, 0, len(s.Samples))
	for i := range s.Samples {
		if x := &s.Samples[i]; x.InuseBytes > 0 && snapshot.OnGPU(x.Kind) {
			held = append(held, x)
		}
	}
	slices.SortStableFunc(held, func(a, b *snapshot.Sample) int { return cmp.Compare(b.InuseBytes, a.InuseBytes) })
	add := func(node int, bytes int64) {
		out.Rows.Node, out.Rows.Bytes = append(out.Rows.Node, node), append(out.Rows.Bytes, bytes)
	}
	for i, x := range held {
		if len(out.Nodes)+longest(x) > maxNodes-1 { // the last node is for the rest
			var rest int64
			for _, y := range held[i:] {
				rest += y.InuseBytes
			}
			node, _ := out.Stack([]*snapshot.Location{{Lines: []snapshot.Line{{Function: fmt.Sprintf("[%d stacks that hold less]", len(held)-i)}}}})
			add(node, rest)
			break
		}
		node, _ := out.Stack(x.Frames())
		add(node, x.InuseBytes)
	}
	return out
}

// longest returns the most nodes that a sample's stack may need.
func longest(x *snapshot.Sample) (n int) {
	for _, l := range x.Frames() {
		n += len(l.Lines)
	}
	return n
}

// flameAPI answers with the memory in use by stack, for the page's flame graph.
func (s *Server) flameAPI(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "pid", "gpu")
	if err != nil {
		return err
	}
	f, err := p.filter()
	if err != nil {
		return err
	}
	return s.sendOf(w, r, jsonType, "flame "+f.String(), func(at *shot) (func(io.Writer) error, error) {
		part, err := f.of(at.Snapshot.Snapshot)
		return func(w io.Writer) error { return json.NewEncoder(w).Encode(flameOf(part)) }, err
	})
}
