package probes

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

func TestFeatures(t *testing.T) {
	openTrace(t, Options{}) // it has all that is required
	for _, f := range Features() {
		if f.Err != nil && f.Without == "" {
			t.Errorf("%v: %v, but tracing works", f, f.Err)
		}
	}
}

// find returns the report of the library that pid maps at level.
func find(t *testing.T, reports []LibraryReport, pid int, level Level) LibraryReport {
	t.Helper()
	for _, r := range reports {
		if r.Level == level && slices.Contains(r.PIDs, pid) {
			return r
		}
	}
	t.Fatalf("no library of level %d of process %d in %+v", level, pid, reports)
	return LibraryReport{}
}

func TestInspect(t *testing.T) {
	kit := testcuda.Get(t)
	a := start(t, testcuda.Workload, testcuda.Options{})
	b := start(t, testcuda.Workload, testcuda.Options{})
	old := start(t, testcuda.Workload, testcuda.Options{Libs: testcuda.LibsOld})
	const nobody = 1 << 30
	reports, unread := Inspect([]int{a.PID(), b.PID(), old.PID(), nobody})

	if len(unread) != 1 || !errors.Is(unread[nobody], os.ErrNotExist) {
		t.Errorf("unread: %v, want process %d alone, which does not exist", unread, nobody)
	}
	r := find(t, reports, a.PID(), Driver)
	if !slices.Equal(r.PIDs, []int{a.PID(), b.PID()}) {
		t.Errorf("%s is mapped by %v, want both processes in one report", r.Path, r.PIDs)
	}
	found, missing := exported(t, kit.LibCUDA, Driver)
	if r.Err != nil || r.Path != kit.LibCUDA || !slices.Equal(r.Found, found) || !slices.Equal(r.Missing, missing) {
		t.Errorf("%s: %v; found %v, missing %v", r.Path, r.Err, r.Found, r.Missing)
	}
	if len(r.Unlisted) != 0 {
		t.Errorf("%s exports %v, which are in no list", r.Path, r.Unlisted)
	}
	if id := readELFBuildID(t, kit.LibCUDA); r.BuildID != id {
		t.Errorf("build id %q, want %q", r.BuildID, id)
	}
	if r := find(t, reports, a.PID(), Runtime); r.Err != nil || r.Path != kit.LibCUDART || len(r.Found) == 0 {
		t.Errorf("libcudart: %+v", r)
	}
	r = find(t, reports, old.PID(), Driver)
	if !slices.Equal(r.PIDs, []int{old.PID()}) || r.Path != kit.LibCUDAOld || r.Err != nil {
		t.Errorf("old libcuda: %+v", r)
	}
	for name, missing := range map[string]bool{"cuMemAlloc_v2": false, "cuMemCreate": true, "cuMemAllocAsync": true} {
		if slices.Contains(r.Missing, name) != missing || slices.Contains(r.Found, name) == missing {
			t.Errorf("old libcuda: %s missing: want %t", name, missing)
		}
	}
}

// exported divides a level's symbols by what the ELF file exports.
func exported(t *testing.T, path string, level Level) (found, missing []string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Entries[1:] {
		if e.Level != level || e.class == classCtxDevice {
			continue
		}
		name := strings.TrimSuffix(e.Symbol, imported)
		if slices.ContainsFunc(syms, func(s elf.Symbol) bool { return s.Name == name && (s.Section == elf.SHN_UNDEF) == e.imported() }) {
			found = append(found, e.Symbol)
		} else {
			missing = append(missing, e.Symbol)
		}
	}
	return found, missing
}

// readELFBuildID reads the section, where Inspect reads the segment.
func readELFBuildID(t *testing.T, path string) string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := f.Section(".note.gnu.build-id").Data()
	if err != nil || len(b) < 17 {
		t.Fatalf("build id of %s: %x, %v", path, b, err)
	}
	return fmt.Sprintf("%x", b[16:])
}

// Files that this process maps itself, under libcuda's name.
func TestInspectUnusable(t *testing.T) {
	elf32 := make([]byte, 4096)
	copy(elf32, "\x7fELF\x01\x01\x01")
	binary.LittleEndian.PutUint16(elf32[16:], uint16(elf.ET_DYN))
	binary.LittleEndian.PutUint16(elf32[18:], uint16(elf.EM_386))
	binary.LittleEndian.PutUint32(elf32[20:], 1)
	binary.LittleEndian.PutUint16(elf32[40:], 52) // e_ehsize
	for name, c := range map[string]struct {
		content []byte
		err     error
		text    string
	}{
		"32-bit": {content: elf32, err: ErrNoSymbols, text: "32-bit"},
		"no ELF": {content: []byte("#!/bin/sh\n"), err: ErrNoSymbols},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "libcuda.so.580.1.2")
			if err := os.WriteFile(file, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(mem)
			reports, unread := Inspect([]int{os.Getpid()})
			if len(unread) != 0 {
				t.Error(unread)
			}
			r := find(t, reports, os.Getpid(), Driver)
			if r.Path != file || r.Version != "580.1.2" || !errors.Is(r.Err, c.err) || !strings.Contains(r.Err.Error(), c.text) || len(r.Found) != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// A libcuda of a later version than this program.
func TestInspectUnlisted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libcuda.so.1")
	var source strings.Builder
	for _, name := range []string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAlloc_v3", "cuMemPoolTrimTo_v2", "cuMemcpyFabric", "cuTexRefCreate", "create"} {
		fmt.Fprintf(&source, "void %s(void) {}\n", name)
	}
	source.WriteString("static void cuMemCreate_v2(void) {}\nvoid *local = cuMemCreate_v2;\n")
	build := func() {
		t.Helper()
		cmd := exec.Command("gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-xc", "-", "-o", file)
		cmd.Stdin = strings.NewReader(source.String())
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	inspected := func() LibraryReport {
		t.Helper()
		f, err := proc.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		lib := newLibrary(f, Driver, file)
		defer lib.Close()
		return inspect(lib)
	}
	build()
	if r := inspected(); r.Err != nil || len(r.Found) != 2 || !slices.Equal(r.Unlisted, []string{"cuMemAlloc_v3", "cuMemPoolTrimTo_v2"}) {
		t.Errorf("%+v", r)
	}
	for i := range 2 * maxUnlisted {
		fmt.Fprintf(&source, "void cuMemCreate%d(void) {}\n", i)
	}
	build()
	if r := inspected(); r.Err != nil || len(r.Found) != 2 || len(r.Unlisted) != maxUnlisted {
		t.Errorf("found %v, %d unlisted, want %d", r.Found, len(r.Unlisted), maxUnlisted)
	}
}

func TestFileVersion(t *testing.T) {
	for file, want := range map[string]string{
		"/usr/lib/libcuda.so.580.159.04":   "580.159.04",
		"/usr/lib/libcuda.so.1":            "",
		"/usr/lib/libcudart.so.12.4.127":   "12.4.127",
		"/v/libcudart-d0da41ae.so.11.0":    "11.0",
		"/usr/lib/libcuda.so":              "",
		"/x.so.9.9/libcuda.so":             "",
		"/usr/lib/libcuda.so.1.\x1b[2J":    "",
		"/usr/lib/libcuda.so.580.1 hidden": "",
	} {
		if got := fileVersion(file); got != want {
			t.Errorf("fileVersion(%q) = %q, want %q", file, got, want)
		}
	}
}
