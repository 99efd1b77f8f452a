package export

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

var csvHeader = []string{"time", "pid", "process", "gpu", "kind", "api", "owner", "address", "handle", "size_bytes", "stack"}

// CSV writes one row for each live allocation (RFC 4180 with \n, UTF-8, one
// header line): the time in RFC 3339 with nanoseconds, the address or the
// driver's handle in 0x hex, the size in bytes, the stack root first, separated
// by ";". A cell that a spreadsheet would run as a formula begins with an
// apostrophe.
func CSV(w io.Writer, s *snapshot.Snapshot, _ Options) error {
	out := csv.NewWriter(w)
	if err := out.Write(csvHeader); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
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
		row[7], row[8] = hexCell(a.Address), hexCell(a.Handle)
		row[9] = strconv.FormatInt(a.Size, 10)
		if err := out.Write(row); err != nil {
			return fmt.Errorf("write csv: %w", err)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

func csvRow(s *snapshot.Sample) []string {
	var stack strings.Builder
	folded(&stack, s.Stack)
	row := make([]string, len(csvHeader))
	row[1] = strconv.Itoa(s.PID)
	row[2] = cell(s.Process)
	row[3] = cell(s.GPU)
	row[4] = cell(s.Kind)
	row[5] = cell(s.API)
	row[6] = cell(s.Owner)
	row[10] = cell(stack.String())
	return row
}

// hexCell returns an empty cell for 0, which is no address and no handle.
func hexCell(n uint64) string {
	if n == 0 {
		return ""
	}
	return hex(n)
}

// cell guards against formula injection (OWASP, "CSV Injection").
func cell(s string) string {
	s = render.Clean(s)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}
