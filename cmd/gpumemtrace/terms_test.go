package main

import (
	"os"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// docs/terms.md has the words of the help. -update writes it.
func TestDocumentsTerms(t *testing.T) {
	const mark = "<!-- What follows is generated. -->\n"
	text, err := os.ReadFile("../../docs/terms.md")
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(text), mark)
	if !found {
		t.Fatalf("docs/terms.md has no line %q", mark)
	}
	snapshottest.Golden(t, "../../../docs/terms.md", []byte(head+mark+"\n"+termsText("- **", "**: ", "\n")))
}

// The help has the words too, and other topics get a suggestion.
func TestHelpTerms(t *testing.T) {
	said := command(t, "help", "terms").start().ends(exitDone).stdout.String()
	for _, x := range terms {
		if !strings.Contains(said, x.word+"\n    "+x.means+"\n") {
			t.Errorf("help terms lacks %q", x.word)
		}
	}
	command(t, "help", "reprot").start().ends(exitUsage).says("did you mean report?")
	if said := command(t, "help", "report").start().ends(exitDone).stdout.String(); !strings.Contains(said, "gpumemtrace report FILE") {
		t.Errorf("help report says %s", said)
	}
}
