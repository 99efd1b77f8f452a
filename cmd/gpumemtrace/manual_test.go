package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra/doc"
)

// The manual page has what one looks for in it.
func TestManual(t *testing.T) {
	var page bytes.Buffer
	if err := doc.GenMan(newRoot(), &doc.GenManHeader{Section: "1"}, &page); err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for _, part := range strings.Split(page.String(), "\n.SH ")[1:] {
		title, text, _ := strings.Cut(part, "\n")
		parts[title] = text
	}
	for title, wants := range map[string][]string{
		"DESCRIPTION": {"attaches to a running program", "doctor"},
		"EXIT STATUS": {"128+N"},
		"FILES":       {"-TIME.pb.gz", "RUN.gmt", "/etc/gpumemtrace/agent.yaml", "/var/cache/gpumemtrace"},
		"OPTIONS":     {"--tensors"},
		"EXAMPLE":     {"gpumemtrace report run.gmt"},
	} {
		text := strings.ReplaceAll(parts[title], "\\-", "-")
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q: %s", title, want, text)
			}
		}
	}
	for _, code := range []int{exitDone, exitFailed, exitUsage, exitAlert} {
		if !strings.Contains(parts["EXIT STATUS"], fmt.Sprintf("\n\\fB%d\\fP\n", code)) {
			t.Errorf("no exit status %d in %s", code, parts["EXIT STATUS"])
		}
	}
}
