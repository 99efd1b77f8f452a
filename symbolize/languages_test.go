package symbolize

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// toolchain returns the path of a compiler that the project does not require.
func toolchain(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	home, _ := os.UserHomeDir()
	if path := filepath.Join(home, ".cargo", "bin", name); exec.Command(path, "--version").Run() == nil {
		return path
	}
	t.Skipf("%s is not installed", name)
	return ""
}

func TestRust(t *testing.T) {
	rustc := toolchain(t, "rustc")
	for _, mangling := range []string{"legacy", "v0"} {
		t.Run(mangling, func(t *testing.T) {
			exe := filepath.Join(t.TempDir(), "shapes")
			out, err := exec.Command(rustc, "-O", "-g", "-Csymbol-mangling-version="+mangling, "-Zunstable-options", "testdata/shapes.rs", "-o", exe).CombinedOutput()
			if err != nil { // stable takes v0 alone without the option
				out, err = exec.Command(rustc, "-O", "-g", "-Csymbol-mangling-version="+mangling, "testdata/shapes.rs", "-o", exe).CombinedOutput()
			}
			if err != nil && mangling == "legacy" {
				out, err = exec.Command(rustc, "-O", "-g", "testdata/shapes.rs", "-o", exe).CombinedOutput()
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			tg := start(t, exe)
			s := newSymbolizer(t, Config{})
			for place, want := range map[string]string{
				"method":  "<shapes::model::Layer>::apply",
				"generic": "shapes::model::generic",
				"inlined": "shapes::model::inlined < shapes::model::outer",
			} {
				l := s.Resolve(s.Locate(tg.pid, tg.at[place], Return))
				got := strings.NewReplacer("shapes::model::Layer::apply", "<shapes::model::Layer>::apply").Replace(names(l))
				if got != want {
					t.Errorf("%s: got %s, want %s", place, names(l), want)
				}
				if l.Lines[0].Line == 0 || filepath.Base(l.Lines[0].File) != "shapes.rs" {
					t.Errorf("%s: at %s", place, sources(l))
				}
			}
		})
	}
}

func TestGo(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		cgo  bool
	}{
		{"with debug information", nil, false},
		{"stripped", []string{"-ldflags=-s -w"}, false},
		{"cgo", nil, true},
		{"cgo, stripped", []string{"-ldflags=-s -w"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			src, exe := filepath.Join(dir, "shapes.go"), filepath.Join(dir, "shapes")
			b, err := os.ReadFile("testdata/shapes.go.txt")
			if err != nil {
				t.Fatal(err)
			}
			cgo := "CGO_ENABLED=0"
			if c.cgo {
				cgo = "CGO_ENABLED=1"
				b = append([]byte(strings.Replace(string(b), "// cgo", "// int twice(int n) { return 2 * n; }\nimport \"C\"", 1)), "\nvar _ = C.twice(2)\n"...)
			}
			if err := os.WriteFile(src, b, 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(need(t, "go"), append(append([]string{"build", "-o", exe}, c.args...), src)...)
			cmd.Env = append(os.Environ(), cgo, "GOFLAGS=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			tg := start(t, exe)
			s := newSymbolizer(t, Config{})
			for place, want := range map[string]string{"method": "main.(*layer).apply", "main": "main.main"} {
				l := s.Resolve(s.Locate(tg.pid, tg.at[place], Exact))
				if got := names(l); got != want {
					t.Errorf("%s: got %s, want %s", place, got, want)
				}
				if l.Lines[0].Line == 0 || filepath.Base(l.Lines[0].File) != "shapes.go" {
					t.Errorf("%s: at %s", place, sources(l))
				}
			}
		})
	}
}
