package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// docs/losses.md has a row for each counter that the program has: its name and what it
// counts, as the code says them, and what to do, as the document does. -update puts new
// rows at its end.
func TestDocumentsLoss(t *testing.T) {
	rows := map[string]string{} // by name, up to what to do
	var names []string
	for _, cause := range loss.All() {
		c := cause.Counter(0)
		if rows[c.Name] != "" {
			t.Errorf("two counters are named %s", c.Name)
		}
		rows[c.Name] = fmt.Sprintf("| `%s` | %s | ", c.Name, c.Help)
		names = append(names, c.Name)
	}
	layers := append(physical.New(ledger.Options{}).Loss(), tensors.New(ledger.Options{}).Loss()...)
	for _, c := range layers {
		_, of, _ := strings.Cut(c.Name, "_")
		if rows[c.Name] == "" && rows[of] == "" {
			t.Errorf("%s is neither a counter of its own nor one of allocations", c.Name)
		}
	}
	text, err := os.ReadFile("../../docs/losses.md")
	if err != nil {
		t.Fatal(err)
	}
	var doc strings.Builder
	for line := range strings.Lines(string(text)) {
		m := regexp.MustCompile("^\\| `(\\w+)` \\| .* \\| (.*) \\|\n$").FindStringSubmatch(line)
		switch {
		case m == nil:
			doc.WriteString(line)
		case rows[m[1]] != "":
			doc.WriteString(rows[m[1]] + m[2] + " |\n")
			delete(rows, m[1])
			if strings.TrimSpace(m[2]) == "" {
				t.Errorf("the document does not say what to do about %s", m[1])
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if row := rows[name]; row != "" {
			doc.WriteString(row + " |\n")
			t.Errorf("the document does not have %s", name)
		}
	}
	snapshottest.Golden(t, "../../../docs/losses.md", []byte(doc.String()))
}
