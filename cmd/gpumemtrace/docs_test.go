package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// documents are what users read, and what it says, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	root := filepath.Join("..", "..")
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	out := map[string]string{}
	for _, name := range append(files, filepath.Join(root, "README.md"), filepath.Join(root, "ARCHITECTURE.md"), filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "SECURITY.md"), filepath.Join(root, "CHANGELOG.md")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(text)
	}
	return out
}

// prose is a document without what is between fences.
func prose(text string) string {
	var out strings.Builder
	for i, part := range strings.Split("\n"+text, "\n```") {
		if i%2 == 0 {
			out.WriteString(part)
		}
	}
	return out.String()
}

// anchors are the names by which a document's headings are linked to.
func anchors(text string) map[string]bool {
	out := map[string]bool{"": true}
	for line := range strings.Lines(prose(text)) {
		if title := strings.TrimLeft(line, "#"); title != line {
			title = regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			out[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return out
}

// Every link between documents leads to a file that is there, and to a heading of it.
func TestDocumentsLink(t *testing.T) {
	texts := documents(t)
	links := 0
	for name, text := range texts {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(prose(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if anchor != "" && !anchors(texts[to])[anchor] {
				t.Errorf("%s links to %s, and there is no such heading", name, m[1])
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links were found", links)
	}
}

// invocations are the arguments of each gpumemtrace that a document's blocks run. In a
// block that has a prompt, the lines without one are output.
func invocations(text string) (out [][]string) {
	for i, block := range strings.Split("\n"+text, "\n```") {
		if i%2 == 0 {
			continue
		}
		_, block, _ = strings.Cut(block, "\n")
		prompt := strings.HasPrefix(block, "$ ")
		for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", " ")) {
			command, prompted := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ ")
			if prompt && !prompted {
				continue
			}
			command, _, _ = strings.Cut(command, " #")
			for part := range strings.SplitSeq(command, "&&") {
				words := strings.Fields(strings.NewReplacer("'", "", "PID", "1").Replace(part))
				if len(words) > 0 && words[0] == "sudo" {
					words = words[1:]
				}
				if len(words) > 0 && words[0] == "gpumemtrace" {
					out = append(out, words[1:])
				}
			}
		}
	}
	return out
}

// Every command that a document shows is one that the program takes.
func TestDocumentsCommand(t *testing.T) {
	commands := 0
	for name, text := range documents(t) {
		for _, args := range invocations(text) {
			commands++
			if err := taken(args); err != nil {
				t.Errorf("%s: gpumemtrace %s: %v", name, strings.Join(args, " "), err)
			}
		}
	}
	if commands < 40 {
		t.Errorf("only %d commands were found", commands)
	}
}

// taken says why the program does not take a command line, which it does not run.
func taken(args []string) error {
	root := newRoot()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// Every flag that a document names is one of some command's.
func TestDocumentsFlag(t *testing.T) {
	known := map[string]bool{"feature-gates": true} // an OpenTelemetry collector's
	root := newRoot()
	for _, cmd := range append([]*cobra.Command{root}, root.Commands()...) {
		cmd.InitDefaultHelpFlag()
		cmd.InitDefaultVersionFlag()
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	}
	named := 0
	for name, text := range documents(t) {
		for _, span := range regexp.MustCompile("`(?:-|gpumemtrace |report |convert |top |diff )[^`]*`").FindAllString(prose(text), -1) {
			for _, m := range regexp.MustCompile(`(?:^|[ \x60])--([a-z][a-z-]*)`).FindAllStringSubmatch(span, -1) {
				if named++; !known[m[1]] {
					t.Errorf("%s has %s, and no command has --%s", name, span, m[1])
				}
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d flags were found", named)
	}
}

// Each line that a document shows of a command's output is one that the command prints, in this order. The
// recording of the README's example is one of the repository's, as it says.
func TestDocumentsOutput(t *testing.T) {
	shown := 0
	for name, text := range documents(t) {
		for i, block := range strings.Split("\n"+text, "\n```") {
			_, block, found := strings.Cut(block, "\n$ gpumemtrace ")
			if i%2 == 0 || !found || strings.HasPrefix(block, "top ") { // top shows a screen
				continue
			}
			command, lines, _ := strings.Cut(block, "\n")
			command, _, _ = strings.Cut(command, " #")
			cmd := exec.Command(binary, strings.Fields(strings.ReplaceAll(command, " run.gmt", " test/recordings/profiler.gmt"))...)
			cmd.Dir = filepath.Join("..", "..")
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%s: %s: %v", name, command, err)
			}
			printed := strings.Split(string(out), "\n")
			for line := range strings.Lines(lines) {
				line = strings.TrimRight(line, "\n")
				begin, _, _ := strings.Cut(line, "…")
				at := slices.IndexFunc(printed, func(s string) bool { return s == line || begin != line && strings.HasPrefix(s, begin) })
				if at < 0 {
					t.Errorf("%s: %s does not print %q. It prints:\n%s", name, command, line, out)
					break
				}
				printed = printed[at+1:]
				shown++
			}
		}
	}
	if shown < 30 {
		t.Errorf("only %d lines of output were found", shown)
	}
}
