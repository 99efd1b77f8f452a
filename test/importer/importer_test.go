// Package importer tests that other modules can use the packages at this one's root.
package importer

import (
	"bytes"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/pprofout"
)

const module = "github.com/gpumemtrace/gpumemtrace"

// A program of another module finds a name and writes a profile with it.
func TestOtherModule(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	copied := func(from, to string, edit func(string) string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), []byte(edit(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	same := func(text string) string { return text }
	copied("testdata/main.go.txt", "main.go", same)
	copied(filepath.Join(root, "go.sum"), "go.sum", same)
	copied(filepath.Join(root, "go.mod"), "go.mod", func(text string) string { // the same versions of what they share
		return strings.Replace(text, "module "+module, "module other", 1) + "\nrequire " + module + " v0.0.0\nreplace " + module + " => " + root + "\n"
	})
	run := exec.Command("go", "run", ".")
	run.Dir = dir
	run.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	var complaints bytes.Buffer
	run.Stderr = &complaints
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, complaints.Bytes())
	}
	p, err := pprofout.Read(bytes.NewReader(out))
	if err != nil || len(p.Samples) != 1 || p.Samples[0].InuseBytes != 42 || p.Samples[0].Stack[0].Lines[0].Function != "os.Getpid" {
		t.Errorf("%+v, %v", p, err)
	}
}

// Each type of this module that a package at the root mentions has an exported name there or in
// another package that others can import, and so has each value of an Op and a Space.
func TestEachTypeHasAName(t *testing.T) {
	paths := []string{module + "/probes", module + "/symbolize", module + "/pprofout"}
	list, err := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(list)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	all := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	for _, path := range paths {
		pkg, err := all.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		a := api{named: map[types.Type]bool{}, seen: map[types.Type]bool{}}
		for _, name := range pkg.Scope().Names() {
			if o, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok && o.Exported() {
				a.named[types.Unalias(o.Type())] = true
			}
		}
		for _, name := range pkg.Scope().Names() {
			if o := pkg.Scope().Lookup(name); o.Exported() {
				a.walk(o.Type())
			}
		}
		for _, x := range a.nameless {
			t.Errorf("%s has no name for %v", path, x)
		}
		if path != paths[0] {
			continue
		}
		events, err := all.Import(module + "/internal/model/event")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range events.Scope().Names() {
			of := types.TypeString(events.Scope().Lookup(name).Type(), (*types.Package).Name)
			if c, ok := events.Scope().Lookup(name).(*types.Const); ok && (of == "event.Op" || of == "event.Space") && name != "NumSpaces" && pkg.Scope().Lookup(name) == nil {
				t.Errorf("%s has no %v", path, c)
			}
		}
	}
}

// An api is what a package's exported names lead to.
type api struct {
	named, seen map[types.Type]bool
	nameless    []types.Type
}

func (a *api) walk(t types.Type) {
	t = types.Unalias(t)
	if a.seen[t] {
		return
	}
	a.seen[t] = true
	switch t := t.(type) {
	case *types.Named:
		if t.Obj().Pkg() == nil || !strings.HasPrefix(t.Obj().Pkg().Path(), module) {
			return
		}
		if t.Obj().Exported() && strings.Contains(t.Obj().Pkg().Path(), "/internal/") && !a.named[t] {
			a.nameless = append(a.nameless, t)
		}
		for m := range t.Methods() {
			if m.Exported() {
				a.walk(m.Type())
			}
		}
		a.walk(t.Underlying())
	case *types.Map:
		a.walk(t.Key())
		a.walk(t.Elem())
	case interface{ Elem() types.Type }:
		a.walk(t.Elem())
	case *types.Signature:
		a.walk(t.Params())
		a.walk(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			a.walk(v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				a.walk(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			a.walk(m.Type())
		}
	}
}
