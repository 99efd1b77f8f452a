package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A declared has the names of the repository's files and Go declarations.
type declared struct {
	files    map[string]bool // paths from the root, and each of their ends that begins at a folder
	names    map[string]bool // "Name", of any declaration
	packages map[string]map[string]bool
	members  map[string]map[string]bool // fields and methods, by the type's name
	embedded map[string]map[string]bool // types, by the name of the type that they are embedded in
	imported map[string]bool            // the last words of imports
}

// repository reads all Go files below the root, and the names of all files.
func repository(t *testing.T, root string) *declared {
	t.Helper()
	d := &declared{map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if e.IsDir() && (name == ".git" || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		for parts := strings.Split(filepath.ToSlash(name), "/"); len(parts) != 0; parts = parts[1:] {
			d.files[strings.Join(parts, "/")] = true
		}
		if e.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			d.add(file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *declared) add(file *ast.File) {
	pkg := file.Name.Name
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		d.imported[path[strings.LastIndex(path, "/")+1:]] = true
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				d.declare(d.packages, pkg, decl.Name)
			} else {
				d.declare(d.members, typeName(decl.Recv.List[0].Type), decl.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					d.declare(d.packages, pkg, spec.Names...)
				case *ast.TypeSpec:
					d.declare(d.packages, pkg, spec.Name)
					d.addFields(spec.Name.Name, spec.Type)
				}
			}
		}
	}
}

// addFields adds the fields of a struct and the methods of an interface.
func (d *declared) addFields(of string, typ ast.Expr) {
	var list *ast.FieldList
	switch typ := typ.(type) {
	case *ast.StructType:
		list = typ.Fields
	case *ast.InterfaceType:
		list = typ.Methods
	default:
		return
	}
	for _, f := range list.List {
		d.declare(d.members, of, f.Names...)
		if len(f.Names) == 0 {
			d.declare(d.embedded, of, ast.NewIdent(typeName(f.Type)))
		}
	}
}

// has returns whether a package declares a name, or a type has it, or one that is embedded in the type.
func (d *declared) has(of, name string, depth int) bool {
	if d.packages[of][name] || d.members[of][name] || d.embedded[of][name] {
		return true
	}
	for e := range d.embedded[of] {
		if depth > 0 && d.has(e, name, depth-1) {
			return true
		}
	}
	return false
}

func (d *declared) declare(in map[string]map[string]bool, of string, names ...*ast.Ident) {
	if in[of] == nil {
		in[of] = map[string]bool{}
	}
	for _, name := range names {
		in[of][name.Name] = true
		d.names[name.Name] = true
	}
}

// typeName is the name of a receiver's or an embedded field's type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

var (
	looksLikeFile = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)*(/|\.(go|c|h|md|yml|json|sh))$`)
	looksLikePath = regexp.MustCompile(`^(bpf|cmd|deploy|docs|internal|probes|scripts|symbolize|test|tools)/[\w./-]+$`)
	looksLikeName = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*)+$`)
	looksExported = regexp.MustCompile(`^[A-Z][a-z]+[A-Za-z0-9]*$`)
)

// python has the first words of names that belong to Python.
var python = map[string]bool{"torch": true, "optimizer": true, "model": true}

// missing returns whether a word in backticks is the name of a file or of a Go declaration, and
// there is none of that name. Names of packages outside the repository are not looked for.
func (d *declared) missing(word string) bool {
	switch {
	case looksLikeFile.MatchString(word), looksLikePath.MatchString(word):
		return !d.files[strings.TrimSuffix(word, "/")]
	case looksLikeName.MatchString(word):
		parts := strings.Split(word, ".")
		if python[parts[0]] || d.imported[parts[0]] && d.packages[parts[0]] == nil {
			return false
		}
		for i, name := range parts[1:] {
			if !d.has(parts[i], name, 5) {
				return true
			}
		}
	case looksExported.MatchString(word):
		return !d.names[word]
	}
	return false
}

// The documents for developers name no file, type, function or field that the code does not have.
func TestDocumentsName(t *testing.T) {
	root := filepath.Join("..", "..")
	d := repository(t, root)
	for _, made := range []string{"State.Afresh", "agent.Merge", "During", "Taker.mu", "nothing.go", "probes/nothing/", "internal/nothing", "probes.Nothing"} {
		if !d.missing(made) {
			t.Errorf("%s is taken for a name of the code", made)
		}
	}
	words := 0
	for _, name := range []string{"ARCHITECTURE.md", "docs/internals.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(prose(string(text)), -1) {
			words++
			if d.missing(match[1]) {
				t.Errorf("%s names `%s`, which the code does not have", name, match[1])
			}
		}
	}
	if words < 300 {
		t.Errorf("only %d words in backticks", words)
	}
}
