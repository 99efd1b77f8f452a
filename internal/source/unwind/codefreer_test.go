package unwind

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// freerOf is codeFreer of a file.
func freerOf(t testing.TB, path string) (offset uint64, err error) {
	t.Helper()
	f, err := proc.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := f.ELF()
	if err != nil {
		t.Fatal(err)
	}
	return codeFreer(e)
}

// pythonFiles are all files of this machine's Pythons.
func pythonFiles(t testing.TB) (files []string) {
	for _, pattern := range []string{
		"/usr/bin/python3.*", "/usr/lib/*/libpython3.*.so.*",
		filepath.Join(os.Getenv("HOME"), ".pyenv/versions/3.*/lib/libpython3.?*.so.*"),
	} {
		found, _ := filepath.Glob(pattern)
		for _, f := range found {
			if f, err := filepath.EvalSymlinks(f); err == nil && !slices.Contains(files, f) && !strings.HasSuffix(f, "-config") {
				files = append(files, f)
			}
		}
	}
	if len(files) == 0 {
		skip(t, "no Python")
	}
	return files
}

// localFunction returns where a function that is not exported lies in a file that has
// not been stripped, 0 elsewhere.
func localFunction(t testing.TB, path, name string) uint64 {
	t.Helper()
	e, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	symbols, _ := e.Symbols()
	for _, s := range symbols {
		if s.Name != name || elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		for _, p := range e.Progs {
			if p.Type == elf.PT_LOAD && s.Value >= p.Vaddr && s.Value-p.Vaddr < p.Filesz {
				return p.Off + s.Value - p.Vaddr
			}
		}
	}
	return 0
}

// The probe lies in the function that the symbol table calls code_dealloc, at its start
// or a few instructions behind it.
func TestCodeFreer(t *testing.T) {
	named := 0
	for _, file := range pythonFiles(t) {
		offset, err := freerOf(t, file)
		if err != nil || offset == 0 {
			t.Errorf("%s: at %#x, %v", file, offset, err)
			continue
		}
		start := localFunction(t, file, "code_dealloc")
		t.Logf("%s: %#x, code_dealloc at %#x", file, offset, start)
		if start == 0 {
			continue
		}
		named++
		if offset < start || offset-start > 32 {
			t.Errorf("%s: at %#x, but code_dealloc is at %#x", file, offset, start)
		}
	}
	if named == 0 { // TestCellsTellCodeApart tells whether it is the one
		t.Log("every Python is stripped of its local symbols")
	}
}

// Types that are not laid out as is known have no probe, and copies of a library's
// neither, but they are no error.
func TestCodeFreerOfOthers(t *testing.T) {
	for _, c := range []struct {
		name, flags string
		want        error
	}{
		{"program", "-no-pie -fno-pic -nostartfiles -Wl,--no-as-needed,--export-dynamic,-e,0", nil},
		{"library", "-shared -fPIC", nil},
		{"packed", "-shared -fPIC -Wl,-z,pack-relative-relocs", nil},
		{"large", "-shared -fPIC -DLARGE", errCodeLayout},
		{"name", "-shared -fPIC -DNAME=\"coder\"", errCodeLayout},
		{"data", "-shared -fPIC -DDATA", errCodeLayout},
		{"none", "-shared -fPIC -DNONE", errCodeLayout},
	} {
		file := build(t, "gcc", "typecode."+c.name, append(strings.Fields(c.flags), "-Os", "testdata/typecode.c")...)
		offset, err := freerOf(t, file)
		want := localFunction(t, file, "code_dealloc")
		if c.want != nil {
			want = 0
		}
		if offset != want || !errors.Is(err, c.want) {
			t.Errorf("%s: at %#x, %v, want %#x, %v", c.name, offset, err, want, c.want)
		}
	}
	library := build(t, "gcc", "libtypecode.so", "-shared", "-fPIC", "testdata/typecode.c")
	user := build(t, "gcc", "typecode.user", "-DUSER", "-no-pie", "-fno-pic", "testdata/typecode.c", library)
	if b, err := exec.Command("readelf", "-rW", user).Output(); err != nil || !strings.Contains(string(b), "R_X86_64_COPY") && !strings.Contains(string(b), "R_AARCH64_COPY") {
		t.Errorf("no copy of the type: %v\n%s", err, b)
	}
	if offset, err := freerOf(t, user); offset != 0 || err != nil {
		t.Errorf("a copy of the type: at %#x, %v", offset, err)
	}
}
