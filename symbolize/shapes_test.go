package symbolize

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// buildShapes compiles testdata/shapes.cc, and the library beside it.
func buildShapes(t testing.TB, flags ...string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "shapes")
	args := append([]string{"-O3", "-fomit-frame-pointer", "-std=c++17", "testdata/shapes.cc", "-o", exe}, flags...)
	command(t, "g++", args...)
	return exe
}

var shapes = []struct {
	place  string
	lookup Lookup
	want   string // without inlined functions
}{
	{"template", Return, "at::native::Kernel::run"},
	{"lambda", Return, "at::native::with_lambda"},
	{"inlines", Return, "outer"},
	{"weak", Exact, "weak_twin_real"},
	{"twin", Exact, "one_body"},
	{"sizeless", Exact, "sizeless"},
	{"main", Exact, "main"},
}

// outermost drops inlined functions, which only some builds know of.
func outermost(names string) string { return names[strings.LastIndex(" < "+names, " < "):] }

func TestShapesOfPrograms(t *testing.T) {
	for _, c := range []struct {
		name    string
		flags   []string
		unnamed string // places that have no symbol
	}{
		{"pie", []string{"-pie", "-fPIE"}, ""},
		{"no pie", []string{"-no-pie", "-fno-pie"}, ""},
		{"static", []string{"-static"}, ""},
		{"static pie", []string{"-static-pie", "-fPIE"}, ""},
		{"debug", []string{"-g"}, ""},
		{"dwarf 4", []string{"-gdwarf-4"}, ""},
		{"dwarf 5 compressed", []string{"-gdwarf-5", "-gz=zlib"}, ""},
		{"no build id", []string{"-Wl,--build-id=none"}, ""},
		// Copies that the compiler made of a function are local.
		{"dynamic symbols only", []string{"-rdynamic", "-s"}, "template lambda"},
		{"lto", []string{"-g", "-flto"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := start(t, buildShapes(t, c.flags...))
			s := newSymbolizer(t, Config{})
			for _, shape := range shapes {
				a := s.Locate(tg.pid, tg.at[shape.place], shape.lookup)
				l := s.Resolve(a)
				want := shape.want
				if strings.Contains(c.unnamed, shape.place) {
					want = "shapes+0x"
					if l.Lines[0].Reason != noSymbol.String() {
						t.Errorf("%s: %s, want no name", shape.place, names(l))
					}
				}
				if got := outermost(names(l)); !strings.HasPrefix(got, want) {
					t.Errorf("%s: %q, want %q", shape.place, names(l), want)
				}
				if l.Address != tg.at[shape.place] {
					t.Errorf("%s: address %#x, want it as captured", shape.place, l.Address)
				}
				if m := l.Mapping; m == nil || m.Path != tg.path || m.Start > l.Address || m.Limit < l.Address {
					t.Errorf("%s: mapping %+v", shape.place, m)
				} else if m != a.mapped() {
					t.Errorf("%s: mappings are not shared", shape.place)
				}
			}
		})
	}
}

func TestInlinedFunctions(t *testing.T) {
	src := "testdata/shapes.cc"
	for _, flags := range [][]string{{"-gdwarf-4"}, {"-gdwarf-5"}, {"-gdwarf-5", "-gz=zlib"}, {"-g", "-no-pie", "-fno-pie"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			tg := start(t, buildShapes(t, flags...))
			s := newSymbolizer(t, Config{})
			l := s.Resolve(s.Locate(tg.pid, tg.at["inlines"], Return))
			if got, want := names(l), "inlined_twice < inlined_once < outer"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			want := fmt.Sprintf("shapes.cc:%d < shapes.cc:%d < shapes.cc:%d",
				lineOf(t, src, "// line of inlined_twice"), lineOf(t, src, "// line of inlined_once"), lineOf(t, src, "// line of outer"))
			if got := sources(l); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if l.Lines[2].System != "_Z5outeri" {
				t.Errorf("linkage name %q", l.Lines[2].System)
			}
			if !l.Mapping.HasLines {
				t.Error("the mapping does not say that it has lines")
			}
		})
	}
}

func TestDebugFiles(t *testing.T) {
	full := buildShapes(t, "-g")
	id := command(t, "readelf", "-n", full)
	_, id, _ = strings.Cut(id, "Build ID: ")
	id, _, _ = strings.Cut(id, "\n")
	for _, c := range []struct {
		name   string
		place  string // of the debug file: %d the debug directory, %e the executable's
		link   bool
		spoil  bool
		inside string
	}{
		{name: "by build id", place: "%d/.build-id/" + id[:2] + "/" + id[2:] + ".debug"},
		{name: "by link, beside", place: "%e/shapes.dbg", link: true},
		{name: "by link, in .debug", place: "%e/.debug/shapes.dbg", link: true},
		{name: "by link, in the debug directory", place: "%d/%e/shapes.dbg", link: true},
		{name: "by link, wrong checksum", place: "%e/shapes.dbg", link: true, spoil: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, debugDir := t.TempDir(), t.TempDir()
			exe, debug := filepath.Join(dir, "shapes"), filepath.Join(t.TempDir(), "shapes.dbg")
			command(t, "objcopy", "--only-keep-debug", full, debug)
			command(t, "objcopy", "--strip-all", full, exe)
			if c.link {
				command(t, "objcopy", "--add-gnu-debuglink="+debug, exe)
			}
			if c.spoil {
				command(t, "objcopy", "--add-section", ".spoilt=/dev/null", "--remove-section=.comment", debug)
			}
			to := strings.NewReplacer("%d", debugDir, "%e", dir).Replace(c.place)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			command(t, "cp", debug, to)

			tg := start(t, exe)
			s := newSymbolizer(t, Config{debugDirs: []string{debugDir}})
			l := s.Resolve(s.Locate(tg.pid, tg.at["inlines"], Return))
			if c.spoil {
				if l.Lines[0].Reason != stripped.String() && l.Lines[0].Reason != noSymbol.String() || !strings.HasPrefix(l.Lines[0].Function, "shapes+0x") {
					t.Errorf("got %s, want no name", names(l))
				}
				return
			}
			if got, want := names(l), "inlined_twice < inlined_once < outer"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if l.Mapping.BuildID != id {
				t.Errorf("build id %q, want %q", l.Mapping.BuildID, id)
			}
		})
	}
}
