package export

import (
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// classTitles are the names of classes of segments on pages.
var classTitles = map[string]string{
	"small": "2 MiB", "large": "20 MiB", "larger": "larger",
	"expandable_small": "expandable, small", "expandable_large": "expandable, large",
}

// allocators writes how the memory of each caching allocator is divided. The text when says of which moment
// that is, and begins with a space if it is not empty.
func allocators(page *render.Page, all []snapshot.Allocator, when string) {
	for i := range all {
		a := &all[i]
		sum := a.Total()
		page.Heading("Segments of %s (%d) on GPU %s%s: %s reserved, %s of that cached, unused", a.Process, a.PID, a.GPU, when,
			bytefmt.Format(sum.Reserved), bytefmt.Format(sum.Cached))
		segments(page, a)
	}
}

// fragmented says how much of what an allocator has is lost to fragmentation.
func fragmented(a *snapshot.Allocator) string {
	sum := a.Total()
	if sum.Reserved == 0 {
		return fmt.Sprintf("%s (%d) on GPU %s: the segments that PyTorch reserved were not recorded", a.Process, a.PID, a.GPU)
	}
	lost, where := "nothing", ""
	if n := sum.Cached - sum.Releasable - sum.Kept; n > 0 {
		lost, where = bytefmt.Format(n), ": it is cached beside tensors that live"
	}
	return fmt.Sprintf("%s (%d) on GPU %s: %s of the %s that PyTorch reserved is lost to fragmentation%s", a.Process, a.PID, a.GPU, lost, bytefmt.Format(sum.Reserved), where)
}

// divided says in sentences what of an allocator's memory is lost, and what can be given back.
func divided(a *snapshot.Allocator) string {
	sum := a.Total()
	text := fragmented(a) + "."
	if sum.Releasable > 0 {
		text += fmt.Sprintf(" %s is cached in segments without a tensor: torch.cuda.empty_cache() gives it back.", bytefmt.Format(sum.Releasable))
	} else if sum.Cached > 0 {
		text += " torch.cuda.empty_cache() gives nothing back."
	}
	if sum.Kept > 0 {
		text += fmt.Sprintf(" %s is kept for CUDA graphs or MemPools.", bytefmt.Format(sum.Kept))
	}
	if free := a.Shared(); free.LargestFree > 0 {
		text += fmt.Sprintf(" The largest free block has %s: a larger tensor needs new memory from CUDA.", bytefmt.Format(free.LargestFree))
	}
	return text
}

// segments writes a row for each class of a's segments, and notes.
func segments(page *render.Page, a *snapshot.Allocator) {
	t := table.New(table.Text("SEGMENTS"), table.Count("COUNT"), table.Bytes("RESERVED"), table.Bytes("IN TENSORS"), table.Bytes("CACHED"), table.Count("FREE BLOCKS"), table.Bytes("LARGEST"), table.Bytes("RELEASABLE"))
	private := slices.ContainsFunc(a.Segments, func(s snapshot.Segments) bool { return s.Private != "" })
	row := func(title string, s *snapshot.Segments) {
		t.Add(title, s.Count, s.Reserved, s.Allocated, s.Cached, s.FreeBlocks, s.LargestFree, s.Releasable)
	}
	for i := range a.Segments {
		s := &a.Segments[i]
		title := classTitles[s.Class]
		if s.Private != "" {
			title += ", pool " + s.Private
		}
		row(title, s)
	}
	if private {
		sum := a.Shared()
		row("for any request", &sum)
	}
	if len(a.Segments) > 1 {
		sum := a.Total()
		row("all", &sum)
	}
	if len(t.Rows) > 0 {
		t.Text(page)
	}
	for _, n := range append(inPrivate(a), unknowns(a)...) {
		page.Line("  %s", n)
	}
}

// inPrivate says how much of an allocator's memory is in private pools.
func inPrivate(a *snapshot.Allocator) (notes []string) {
	var sure, doubt snapshot.Segments
	for i := range a.Segments {
		switch s := &a.Segments[i]; s.Private {
		case "":
		case unknownPool:
			doubt.Add(s)
		default:
			sure.Add(s)
		}
	}
	if sure.Count > 0 {
		notes = append(notes, fmt.Sprintf("Private pools serve only their CUDA graphs or MemPools: %s of their %s are cached.",
			bytefmt.Format(sure.Cached), bytefmt.Format(sure.Reserved)))
	}
	if sure.Kept > 0 {
		notes = append(notes, fmt.Sprintf("%s of private pools have no tensor. PyTorch can release them once no graph or MemPool refers to the pool.", bytefmt.Format(sure.Kept)))
	}
	if doubt.Count > 0 {
		notes = append(notes, fmt.Sprintf("%s of the %s that may belong to a private pool are cached. They do not count as releasable.",
			bytefmt.Format(doubt.Cached), bytefmt.Format(doubt.Reserved)))
	}
	return notes
}

// unknowns says how much of an allocator's memory is not known.
func unknowns(a *snapshot.Allocator) (notes []string) {
	switch {
	case a.Unseen > 0:
		notes = append(notes, fmt.Sprintf("%s more are in tensors that were not seen, so there are fewer or smaller free blocks than shown.", bytefmt.Format(a.Unseen)))
	case a.Unseen < 0:
		notes = append(notes, fmt.Sprintf("%s of the tensors were freed without being seen, so there are more or larger free blocks than shown.", bytefmt.Format(-a.Unseen)))
	}
	if a.Outside > 0 {
		notes = append(notes, fmt.Sprintf("%s of tensors are in segments whose allocation was not seen, so the free blocks there are not known.", bytefmt.Format(a.Outside)))
	}
	return notes
}
