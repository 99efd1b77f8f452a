package export

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
)

// csvLabels are the labels of a row, in its order.
var csvLabels = func() (out []*snapshot.Label) {
	for i := range snapshot.AllLabels {
		if l := &snapshot.AllLabels[i]; l.Column != 0 {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b *snapshot.Label) int { return cmp.Compare(a.Column, b.Column) })
	return out
}()

// CSV writes one row for each live allocation (RFC 4180 with \n, UTF-8, one
// header line): the time in RFC 3339 with nanoseconds, the labels, the address
// or the driver's handle in 0x hex, the size in bytes, the stack root first,
// separated by ";". A cell that a spreadsheet would run as a formula begins with an
// apostrophe.
func CSV(w io.Writer, s *snapshot.Snapshot, _ Options) error {
	out := csv.NewWriter(w)
	header := []string{"time"}
	for _, l := range csvLabels {
		header = append(header, l.Name)
	}
	_ = out.Write(append(header, "address", "handle", "size_bytes", "stack")) // Error returns the first error
	// The cells that a sample's rows share are made once, when first needed.
	shared := make([][]string, len(s.Samples))
	for i := range s.Live {
		a := &s.Live[i]
		if a.Sample < 0 || a.Sample >= len(shared) {
			return fmt.Errorf("write csv: live allocation %d belongs to sample %d of %d", i, a.Sample, len(shared))
		}
		row := shared[a.Sample]
		if row == nil {
			row = csvRow(&s.Samples[a.Sample])
			shared[a.Sample] = row
		}
		row[0] = a.Time.Format(time.RFC3339Nano)
		own := row[1+len(csvLabels):]
		own[0], own[1], own[2] = hexCell(a.Address), hexCell(a.Handle), strconv.FormatInt(a.Size, 10)
		_ = out.Write(row)
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

// csvRow returns a row with the cells that the allocations of a sample share.
func csvRow(s *snapshot.Sample) []string {
	row := make([]string, 1, len(csvLabels)+5)
	for _, l := range csvLabels {
		row = append(row, table.Cell(l.Get(&s.Labels)))
	}
	var stack strings.Builder
	folded(&stack, s.Frames())
	return append(row, "", "", "", table.Cell(stack.String()))
}

// hexCell returns an empty cell for 0, which is no address and no handle.
func hexCell(n uint64) string {
	if n == 0 {
		return ""
	}
	return hex(n)
}
