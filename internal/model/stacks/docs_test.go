package stacks

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list of categories into docs/tensors.md")

// The list of categories in docs/tensors.md is made from Rules: `go test
// ./internal/model/stacks -run TestDocs -update` writes it.
func TestDocs(t *testing.T) {
	const file, begin, end = "../../../docs/tensors.md", "<!-- categories: begin -->\n", "<!-- categories: end -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	list, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %s", file, strings.TrimSpace(begin))
	}
	want := "\n"
	for i := range Rules {
		want += fmt.Sprintf("1. `%s`: %s\n", Rules[i].Category, Rules[i].What)
	}
	want += fmt.Sprintf("1. `%s`: none of these\n\n", Unknown)
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if list != want {
		t.Errorf("%s is not what Rules says: run this test with -update", file)
	}
}
