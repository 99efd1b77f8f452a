package export

import (
	"io"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// TestAllocators: a page of totals shows how segments are divided. A profile keeps that
// in a comment.
func TestAllocators(t *testing.T) {
	for name, f := range map[string]writeFunc{
		"report.txt": Report, "summary.txt": func(w io.Writer, s *snapshot.Snapshot, _ Options) error { return Summary(w, s, false) },
	} {
		snapshottest.Golden(t, "allocators/"+name, []byte(write(t, f, snapshottest.Tensors(), Options{})))
	}
	snapshottest.Golden(t, "allocators/pools.txt", []byte(write(t, Report, snapshottest.Pools(), Options{})))
	snapshottest.Golden(t, "allocators/saved.txt", []byte(report(t, snapshottest.Tensors(), Options{})))
}
