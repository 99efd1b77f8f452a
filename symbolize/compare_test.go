package symbolize

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// openFile returns the image of a file that nobody maps.
func openFile(t testing.TB, s *Symbolizer, path string) *image {
	t.Helper()
	f, err := proc.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	im, reason := newImage(s, f, f.Size, &region{Mapping: proc.Mapping{Path: path}})
	if reason != none {
		f.Close()
		t.Fatalf("%s: %v", path, reason)
	}
	im.ours = true
	t.Cleanup(im.close)
	return im
}

type nmFunction struct {
	start, size uint64
	names       map[string]bool
}

// functionsOf returns the functions that nm lists, by start.
func functionsOf(t testing.TB, path string, flags ...string) map[uint64]*nmFunction {
	t.Helper()
	out := make(map[uint64]*nmFunction)
	lines := bufio.NewScanner(strings.NewReader(command(t, "nm", append(flags, "-S", "--defined-only", path)...)))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 4 || !strings.Contains("tTwWiI", f[2]) || f[3] == "_.stapsdt.base" {
			continue
		}
		start, _ := strconv.ParseUint(f[0], 16, 64)
		size, _ := strconv.ParseUint(f[1], 16, 64)
		fn := out[start]
		if fn == nil {
			fn = &nmFunction{start: start, names: make(map[string]bool)}
			out[start] = fn
		}
		fn.size = max(fn.size, size)
		name, _, _ := strings.Cut(f[3], "@")
		fn.names[name] = true
	}
	return out
}

// addr2line returns what binutils says of addresses: linkage names and
// "file:line", innermost first.
func addr2line(t testing.TB, path string, addrs []uint64) map[uint64][][2]string {
	t.Helper()
	args := []string{"-a", "-f", "-i", "-e", path}
	for _, a := range addrs {
		args = append(args, fmt.Sprintf("%#x", a))
	}
	out := make(map[uint64][][2]string)
	lines := bufio.NewScanner(strings.NewReader(command(t, "addr2line", args...)))
	var at uint64
	for lines.Scan() {
		if s, ok := strings.CutPrefix(lines.Text(), "0x"); ok {
			at, _ = strconv.ParseUint(s, 16, 64)
			continue
		}
		name := lines.Text()
		lines.Scan()
		place, _, _ := strings.Cut(lines.Text(), " (discriminator")
		out[at] = append(out[at], [2]string{name, filepath.Clean(place)})
	}
	return out
}

func linkage(l snapshot.Line) string {
	if l.System != "" {
		return l.System
	}
	return l.Function
}

// Random addresses in every function have the functions, inlined ones too, and
// the lines that addr2line finds.
func TestLikeAddr2line(t *testing.T) {
	for _, flags := range [][]string{{"-O0"}, {"-O2"}, {"-O3", "-gdwarf-4"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			exe := filepath.Join(t.TempDir(), "templates")
			command(t, "g++", append([]string{"-g", "-std=c++17", "testdata/templates.cc", "-o", exe, "-pthread"}, flags...)...)
			s := newSymbolizer(t, Config{})
			im := openFile(t, s, exe)
			random := rand.New(rand.NewPCG(1, 2))
			var addrs []uint64
			fns := functionsOf(t, exe)
			for _, start := range slices.Sorted(maps.Keys(fns)) {
				fn := fns[start]
				for range min(int(fn.size), 24) {
					addrs = append(addrs, fn.start+random.Uint64N(fn.size))
				}
			}
			slices.Sort(addrs)
			addrs = slices.Compact(addrs)
			random.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
			addrs = addrs[:min(len(addrs), 800)]
			compared := 0
			for at, want := range addr2line(t, exe, addrs) {
				if want[0][0] == "??" || strings.HasPrefix(want[0][1], "??") {
					continue // start-up code without debug information
				}
				compared++
				lines, reason := im.resolve(at, &mapping{})
				if reason != none {
					t.Errorf("%#x: %v, want %v", at, reason, want)
					continue
				}
				var got [][2]string
				for _, l := range lines {
					got = append(got, [2]string{linkage(l), fmt.Sprintf("%s:%d", filepath.Clean(l.File), l.Line)})
				}
				symbol, _ := im.syms.lookup(at)
				if !alike(got, want, lines, symbol) {
					t.Errorf("%#x:\n got %v\nwant %v", at, got, want)
				}
			}
			if compared < 300 {
				t.Errorf("only %d addresses compared", compared)
			}
			t.Logf("%d addresses compared", compared)
		})
	}
}

// alike compares but for what binutils shows in another way: a line of none is
// "?", a function without a linkage name has no scope, and the innermost
// function, if it is so, goes by the symbol around it.
func alike(got, want [][2]string, lines []snapshot.Line, symbol string) bool {
	if len(got) != len(want) {
		return false
	}
	last := func(name string) string {
		name = simple(readable(name))
		if i := strings.LastIndex(name, "::"); i >= 0 {
			name = name[i+2:]
		}
		return name
	}
	for i := range got {
		if place := strings.Replace(want[i][1], ":?", ":0", 1); got[i][1] != place && !impossible(want[i][1]) {
			return false
		}
		if last(lines[i].Function) != last(want[i][0]) && last(got[i][0]) != last(want[i][0]) && (i > 0 || want[i][0] != symbol) {
			return false
		}
	}
	return true
}

// impossible reports whether binutils names a line that the test's own source
// does not have: 2.40 takes the wrong file where a line table changes it twice
// at one address.
func impossible(place string) bool {
	file, n, _ := strings.Cut(place, ":")
	line, _ := strconv.Atoi(n)
	b, err := os.ReadFile(filepath.Join("testdata", filepath.Base(file)))
	return err == nil && line > strings.Count(string(b), "\n")
}

// Every function symbol is found at its first and its last byte, by one of the
// names that nm has for it.
func TestLikeNM(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "templates")
	command(t, "g++", "-O2", "-std=c++17", "testdata/templates.cc", "-o", exe, "-static", "-pthread")
	for _, c := range []struct {
		path  string
		flags []string
	}{
		{exe, nil},
		{libc(t), []string{"-D"}},
	} {
		t.Run(filepath.Base(c.path), func(t *testing.T) {
			s := newSymbolizer(t, Config{})
			im := openFile(t, s, c.path)
			fns := functionsOf(t, c.path, c.flags...)
			named := 0
			for _, fn := range fns {
				for _, at := range []uint64{fn.start, fn.start + max(fn.size, 1) - 1} {
					lines, reason := im.resolve(at, &mapping{})
					if reason == none && fn.names[linkage(lines[0])] {
						named++
						continue
					}
					// Another symbol may start inside.
					inside := false
					for _, other := range fns {
						inside = inside || other != fn && reason == none && other.names[linkage(lines[0])] && other.start <= at && at < other.start+max(other.size, 1)
					}
					if !inside {
						t.Errorf("%#x: got %v (%v), want one of %v", at, lines, reason, fn.names)
					}
				}
			}
			if named < len(fns) || len(fns) < 500 {
				t.Errorf("%d of %d functions found", named, len(fns))
			}
		})
	}
}

// libc returns the path of the C library that gcc links.
func libc(t testing.TB) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(strings.TrimSpace(command(t, "gcc", "-print-file-name=libc.so.6")))
	if err != nil {
		t.Fatal(err)
	}
	return path
}
