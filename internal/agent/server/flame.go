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
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// maxNodes bounds the frames of a flame graph, where they differ.
const maxNodes = 20_000

// A flame is what is in use on GPUs by stack, for the page.
type flame struct {
	*web.Stacks
	// Rows are leaves: their nodes, and what they hold.
	Rows struct {
		Node  []int   `json:"node"`
		Bytes []int64 `json:"bytes"`
	} `json:"rows"`
}

// flameOf returns that of a snapshot. Stacks for which there is no room are one frame, and
// say how many they are.
func flameOf(s *snapshot.Snapshot) *flame {
	out := &flame{Stacks: web.NewStacks(maxNodes)}
	held := make([]*snapshot.Sample, 0, len(s.Samples))
	for i := range s.Samples {
		if x := &s.Samples[i]; x.InuseBytes > 0 && render.OnGPU(x.Kind) {
			held = append(held, x)
		}
	}
	slices.SortStableFunc(held, func(a, b *snapshot.Sample) int { return cmp.Compare(b.InuseBytes, a.InuseBytes) })
	add := func(node int, bytes int64) {
		out.Rows.Node, out.Rows.Bytes = append(out.Rows.Node, node), append(out.Rows.Bytes, bytes)
	}
	for i, x := range held {
		if len(out.Nodes)+longest(x) > maxNodes-1 { // one is for those
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

// longest is how many nodes a sample's stack takes at most.
func longest(x *snapshot.Sample) (n int) {
	for _, l := range x.Frames() {
		n += len(l.Lines)
	}
	return n
}

// flameAPI answers with what is in use by stack, for the page's flame graph.
func (s *Server) flameAPI(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "pid", "gpu")
	if err != nil {
		return err
	}
	f, err := p.filter()
	if err != nil {
		return err
	}
	at, err := s.looks.now(r.Context())
	if err != nil {
		return err
	}
	body, err := s.looks.of(r.Context(), at, "flame "+f.String(), func() ([]byte, error) {
		part, err := f.of(at.Snapshot)
		if err != nil {
			return nil, err
		}
		return packed(func(w io.Writer) error { return json.NewEncoder(w).Encode(flameOf(part)) })
	})
	if err != nil {
		return err
	}
	return sendPacked(w, r, jsonType, body)
}
