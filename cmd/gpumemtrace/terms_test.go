package main

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// Each label in brackets that the program writes is explained.
func TestTermsHaveLabels(t *testing.T) {
	var explained []string // patterns
	for _, x := range terms {
		explained = append(explained, regexp.QuoteMeta(x.word))
		for _, label := range regexp.MustCompile(`\[([^]]+)\]`).FindAllStringSubmatch(x.word+x.means, -1) {
			explained = append(explained, strings.ReplaceAll(regexp.QuoteMeta(label[1]), `\.\.\.`, ".*"))
		}
	}
	known := regexp.MustCompile("^(" + strings.Join(explained, "|") + ")$")
	found := 0
	for _, label := range labels(t, "../../internal", "../../symbolize") {
		found++
		if !known.MatchString(label) {
			t.Errorf("help terms does not explain [%s]", label)
		}
	}
	if found < 50 {
		t.Errorf("only %d labels", found)
	}
}

// labels finds strings of the code below folders that begin with a bracket and a word. What follows the
// first word of a label is not known where the code puts it together.
func labels(t *testing.T, folders ...string) (out []string) {
	t.Helper()
	label := regexp.MustCompile(`^\[([a-z][A-Za-z+,:%\' ]+)\]?$`)
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "internal/testing") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			var s scanner.Scanner
			s.Init(token.NewFileSet().AddFile(path, -1, len(source)), source, nil, 0)
			for _, kind, text := s.Scan(); kind != token.EOF; _, kind, text = s.Scan() {
				if kind != token.STRING {
					continue
				}
				value, err := strconv.Unquote(text)
				if match := label.FindStringSubmatch(value); err == nil && match != nil && value != "[vdso]" { // which is the name of a file
					out = append(out, match[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
