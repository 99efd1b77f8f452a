// Lines counts the lines of production Go that hold code, by folder: no comments, no
// blank lines, no tests, no generated files, and nothing of what only tests or builds use.
//
//	go run ./tools/lines
package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// support lists folders that no released program contains.
var support = []string{"internal/testing", "test", "tools", "bin", "dist"}

func main() {
	folders, total := map[string]int{}, 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains(support, path) || entry.Name() == "testdata" || path != "." && strings.HasPrefix(entry.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil || bytes.Contains(source, []byte("\n// Code generated ")) || bytes.HasPrefix(source, []byte("// Code generated ")) {
			return err
		}
		n := count(source)
		folders[filepath.Dir(path)] += n
		total += n
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
	names := slices.SortedFunc(maps.Keys(folders), func(a, b string) int { return folders[b] - folders[a] })
	for _, name := range names {
		fmt.Printf("%7d %s\n", folders[name], name)
	}
	fmt.Printf("%7d in all\n", total)
}

// count returns how many lines of source hold at least a part of a token.
func count(source []byte) int {
	file := token.NewFileSet().AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines := map[int]bool{}
	for {
		at, kind, text := s.Scan()
		if kind == token.EOF {
			return len(lines)
		}
		if kind == token.SEMICOLON && text == "\n" {
			continue // the scanner's own
		}
		first := file.Line(at)
		for i := range strings.Count(text, "\n") + 1 {
			lines[first+i] = true
		}
	}
}
