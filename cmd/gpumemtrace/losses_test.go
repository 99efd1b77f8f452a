package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/tensors"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// maxShown bounds the counters that outputs show: those by themselves, and the classes.
const maxShown = 55

// Every counter has a place in the table of the package loss, and the table has no other.
func TestEveryLossHasPlace(t *testing.T) {
	single, seen := 0, map[string]bool{}
	for _, cause := range loss.All() {
		c := cause.Counter(1)
		p, known := loss.PlaceOf(c.Name)
		switch {
		case seen[c.Name]:
			t.Errorf("two counters are named %s", c.Name)
		case !known:
			t.Errorf("the table does not have %s", c.Name)
		case p.Class == c.Name && p.Action == "":
			t.Errorf("%s is shown by itself, and there is nothing to do about it", c.Name)
		case p.Class == c.Name:
			single++
		}
		seen[c.Name] = true
	}
	for _, name := range loss.Names() {
		if !seen[name] {
			t.Errorf("the table has %s, and no part of the program counts it", name)
		}
	}
	for _, c := range append(physical.New(ledger.Options{}).Loss(), tensors.New(ledger.Options{}).Loss()...) {
		if _, known := loss.PlaceOf(c.Name); !known {
			t.Errorf("%s is neither a counter of its own nor one of allocations", c.Name)
		}
	}
	if n := single + len(loss.Classes); n > maxShown {
		t.Errorf("%d counters and classes are shown, want %d at most", n, maxShown)
	}
}

// lossList is the list of docs/losses.md.
func lossList() string {
	var out strings.Builder
	out.WriteString("\n")
	all := loss.All()
	slices.SortFunc(all, func(a, b loss.Cause) int { return strings.Compare(a.Counter(0).Name, b.Counter(0).Name) })
	for _, cause := range all {
		c := cause.Counter(0)
		if p, _ := loss.PlaceOf(c.Name); p.Class == c.Name {
			fmt.Fprintf(&out, "- `%s`: %s. *%s*\n", c.Name, c.Help, p.Action)
		}
	}
	return out.String()
}

// docs/losses.md has what the table and the counters themselves say. -update writes it.
func TestDocumentsLoss(t *testing.T) {
	const mark = "<!-- What follows is generated. -->\n"
	text, err := os.ReadFile("../../docs/losses.md")
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(text), mark)
	if !found {
		t.Fatalf("docs/losses.md has no line %q", mark)
	}
	for _, c := range loss.Classes {
		if !strings.Contains(head, "`"+c.Name+"`") {
			t.Errorf("docs/losses.md does not describe the class %s", c.Name)
		}
	}
	snapshottest.Golden(t, "../../../docs/losses.md", []byte(head+mark+lossList()))
}
