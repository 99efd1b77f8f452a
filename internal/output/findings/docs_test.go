package findings

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The list of causes in docs/findings.md is made from Rules.
func TestDocs(t *testing.T) {
	const file, begin, end = "../../../docs/findings.md", "<!-- findings: begin -->\n", "<!-- findings: end -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	list, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %s", file, strings.TrimSpace(begin))
	}
	var groups []string // of the same needs
	causes := map[string]string{}
	for _, r := range Rules {
		var needs []string
		for _, n := range r.Needs {
			needs = append(needs, string(n))
		}
		group := strings.Join(needs, ", ")
		if causes[group] == "" {
			groups = append(groups, group)
		}
		causes[group] += fmt.Sprintf("  - `%s`: %s\n", r.Name, r.Cause)
	}
	want := "\n"
	for _, group := range groups {
		want += fmt.Sprintf("- traced %s:\n%s", group, causes[group])
	}
	want += "\n"
	if flag.Lookup("update").Value.String() == "true" { // of snapshottest
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if list != want {
		t.Errorf("%s is not what Rules says: run this test with -update", file)
	}
}
