package proc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// This package is the only reader of /proc: no other names a path there, but for tests'
// support. depguard sees what is imported alone.
func TestOnlyReader(t *testing.T) {
	own, files, err := procPaths("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(own) == 0 || files < 100 {
		t.Fatalf("%d files seen, here in %q", files, own)
	}
	for _, at := range own {
		if !strings.HasPrefix(at, "../../../internal/source/proc/") && !strings.HasPrefix(at, "../../../internal/testing/") {
			t.Errorf("%s names a path in /proc: ask internal/source/proc", at)
		}
	}
}

func TestProcPaths(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/reads.go":      "package a\n\nvar status = \"/proc\" + \"/self/status\"",
		"a/formats.go":    "package a\n\nconst s = `/proc/%d/maps`\n",
		"a/reads_test.go": "package a\n\nvar x = \"/proc/self\"\n",
		"a/speaks.go":     "package a\n\n// of /proc\nvar x = \"mount /proc\"\nvar y = \"/processes\"\n",
		".git/reads.go":   "package a\n\nvar x = \"/proc/self\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, files, err := procPaths(dir)
	if want := []string{dir + "/a/formats.go:3:11", dir + "/a/reads.go:3:14"}; err != nil || files != 3 || !slices.Equal(got, want) {
		t.Errorf("%q in %d files, %v, want %q", got, files, err, want)
	}
}

// procPaths returns where the Go files below dir, but tests, have a string that
// is a path in /proc, and how many files those are.
func procPaths(dir string) (found []string, files int, err error) {
	fset := token.NewFileSet()
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(name, ".") && path != dir:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(lit.Value); err == nil && (text == "/proc" || strings.HasPrefix(text, "/proc/")) {
				found = append(found, fset.Position(lit.Pos()).String())
			}
			return true
		})
		return nil
	})
	return found, files, err
}
