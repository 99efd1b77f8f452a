package export

import (
	"io"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// TestAllocators: a report says how much is cached, and with Segments how it is divided. A
// profile keeps that in a comment.
func TestAllocators(t *testing.T) {
	for name, f := range map[string]writeFunc{
		"report.txt": Report, "summary.txt": func(w io.Writer, s *snapshot.Snapshot, _ Options) error { return Summary(w, s, false) },
	} {
		snapshottest.Golden(t, "allocators/"+name, []byte(write(t, f, snapshottest.Tensors(), Options{})))
	}
	snapshottest.Golden(t, "allocators/pools.txt", []byte(write(t, Report, snapshottest.Pools(), Options{Segments: true})))
	snapshottest.Golden(t, "allocators/segments.txt", []byte(write(t, Report, snapshottest.Tensors(), Options{Segments: true})))
	snapshottest.Golden(t, "allocators/saved.txt", []byte(report(t, snapshottest.Tensors(), Options{})))
}
