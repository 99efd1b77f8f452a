package symbolize

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

func buildJIT(t testing.TB) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "jit")
	command(t, "gcc", "-O1", "testdata/jit.c", "-o", exe, "-static")
	return exe
}

func TestAnonymousMemory(t *testing.T) {
	tg := start(t, buildJIT(t))
	s := newSymbolizer(t, Config{})
	l := s.Resolve(s.Locate(tg.pid, tg.at["code"], Exact))
	if got, want := names(l), "[anon] ("+anonymous.String()+")"; got != want || l.Mapping != nil {
		t.Errorf("got %s in %v, want %s", got, l.Mapping, want)
	}
	if n := reasonCount(t, s, "unnamed_anonymous"); n != 1 {
		t.Errorf("%d anonymous addresses, want 1", n)
	}
}

func TestPerfMap(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		named   bool
	}{
		{"as written", func(*testing.T, string) {}, true},
		{"of another user", func(t *testing.T, path string) {
			if err := os.Chown(path, 12345, 12345); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"symbolic link", func(t *testing.T, path string) {
			to := filepath.Join(t.TempDir(), "map")
			if err := os.Rename(path, to); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, path); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"pipe", func(t *testing.T, path string) {
			os.Remove(path)
			if err := syscall.Mkfifo(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := start(t, buildJIT(t), "describe")
			path := fmt.Sprintf("/tmp/perf-%d.map", tg.pid)
			t.Cleanup(func() { os.Remove(path) })
			c.prepare(t, path)
			s := newSymbolizer(t, Config{})
			code, far, bare := s.Locate(tg.pid, tg.at["code"], Exact), s.Locate(tg.pid, tg.at["code"]+64+128, Return), s.Locate(tg.pid, tg.at["bare"], Exact)
			tg.stop() // what was pinned names it still
			anon := "[anon] (" + anonymous.String() + ")"
			want, wantFar := "second", "py::forward:/home/user/train.py"
			if !c.named {
				want, wantFar = anon, anon
			}
			if got := names(s.Resolve(code)); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if got := names(s.Resolve(far)); got != wantFar {
				t.Errorf("got %s, want %s", got, wantFar)
			}
			if got := names(s.Resolve(bare)); got != anon {
				t.Errorf("got %s, want %s", got, anon)
			}
		})
	}
}

// What a compiler describes later has a name from then on.
func TestPerfMapGrows(t *testing.T) {
	tg := start(t, buildJIT(t), "describe")
	path := fmt.Sprintf("/tmp/perf-%d.map", tg.pid)
	t.Cleanup(func() { os.Remove(path) })
	s := newSymbolizer(t, Config{})
	a := s.Locate(tg.pid, tg.at["bare"], Exact)
	first := s.Resolve(a)
	if first.Lines[0].Reason == "" || a.Final(first) {
		t.Fatalf("got %s before it was described", names(first))
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "%x 10 late", tg.at["bare"])
	if l := s.Retry(a, first); l != first {
		t.Errorf("got %s out of half a line", names(l))
	}
	fmt.Fprintf(f, "r\n")
	f.Close()
	if l := s.Retry(a, first); names(l) != "later" || !a.Final(l) {
		t.Errorf("got %s, want later", names(l))
	}
	if n := reasonCount(t, s, "unnamed_anonymous"); n != 1 {
		t.Errorf("one address counted %d times", n)
	}
}

func TestVDSO(t *testing.T) {
	tg := start(t, buildShapes(t))
	s := newSymbolizer(t, Config{})
	for e, err := range proc.Mappings(int(tg.pid)) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Path != vdsoPath {
			continue
		}
		image := make([]byte, e.End-e.Start)
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", tg.pid))
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		if _, err := mem.ReadAt(image, int64(e.Start)); err != nil {
			t.Fatal(err)
		}
		v, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			t.Fatal(err)
		}
		syms, err := v.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, sym := range syms {
			if !strings.Contains(sym.Name, "clock_gettime") {
				continue
			}
			a := s.Locate(tg.pid, e.Start+sym.Value+1, Return)
			tg.stop()
			l := s.Resolve(a)
			if !strings.Contains(names(l), "clock_gettime") || l.Mapping.Path != vdsoPath {
				t.Errorf("got %s in %v, want %s", names(l), l.Mapping, sym.Name)
			}
			return
		}
	}
	t.Fatal("the target has no vdso")
}

// A process in another root has its files, debug files and perf map there.
func TestOtherRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("root is needed for chroot")
		}
		t.Skip("root is needed for chroot")
	}
	full := buildShapes(t, "-g", "-static")
	root := t.TempDir()
	exe := filepath.Join(root, "app")
	command(t, "objcopy", "--strip-all", full, exe)
	s := newSymbolizer(t, Config{debugDirs: []string{"/debug"}})
	id := openFile(t, s, exe).buildID
	debug := filepath.Join(root, "debug", ".build-id", id[:2], id[2:]+".debug")
	if err := os.MkdirAll(filepath.Dir(debug), 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "objcopy", "--only-keep-debug", full, debug)
	tg := startIn(t, root, "/app")
	a := s.Locate(tg.pid, tg.at["inlines"], Return)
	tg.stop()
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	l := s.Resolve(a)
	if got, want := names(l), "inlined_twice < inlined_once < outer"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
