package probes

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// as runs a command as a user without privileges.
func as(user uint32, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	return cmd
}

const nobody, somebody = 65534, 65533

// open2all returns a folder that every user may look into.
func open2all(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ask returns the one line that p answers.
func (p *program) ask(question string) string {
	p.Helper()
	if _, err := fmt.Fprintln(p.in, question); err != nil || !p.out.Scan() {
		p.Fatalf("it ended without an answer: %v", err)
	}
	return p.out.Text()
}

// A user's process maps its own libcuda and another user's file in turn while
// it is probed. No probe may ever be in that file: its symbols are not what the
// probes went by.
func TestRemappedLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	dir := open2all(t)
	bait, file := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "victim.bin")
	compile(t, bait, "odd.c", "-fPIC", "-shared", "-fvisibility=default")
	compile(t, filepath.Join(dir, "remap"), "remap.c")
	compile(t, filepath.Join(dir, "victim"), "victim.c")
	// As long as the bait, so that every probe of the bait would lie in it.
	st, err := os.Stat(bait)
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, st.Size())
	for i := range text {
		text[i] = 0x90
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(bait, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	hostile := spawn(t, as(nobody, filepath.Join(dir, "remap"), bait, file), "up")
	victim := spawn(t, as(somebody, filepath.Join(dir, "victim"), file), "up")

	tr := openTrace(t, Options{All: true})
	attached := 0
	for end := time.Now().Add(5 * time.Minute); attached < 50 && time.Now().Before(end); {
		libs, err := findLibraries(hostile.pid(), []Level{Driver})
		if err != nil {
			t.Fatal(err)
		}
		for _, lib := range libs {
			a, err := attachRows(lib, tr.kernel.progs, nil, lasting)
			if err != nil {
				lib.Close()
				continue
			}
			attached++
			if got := victim.ask("?"); got != "changed 0" {
				t.Fatalf("probes on the library of one user, for the %dth time: of another user's code %s bytes", attached, got)
			}
			if err := a.close(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%d times", attached)
	if attached < 50 {
		t.Errorf("attached %d times: the process was not hostile enough", attached)
	}
}

// Whatever a library is called and whatever becomes of its file, it is probed,
// and called what its process calls it.
func TestHostileLibraryNames(t *testing.T) {
	dir := open2all(t)
	lib := filepath.Join(dir, "lib.so")
	compile(t, lib, "odd.c", "-fPIC", "-shared", "-fvisibility=default")
	compile(t, filepath.Join(dir, "victim"), "victim.c")
	for _, name := range []string{
		"libcuda.so.1", "libcuda.so.1 (deleted)", "libcuda.so.\n7f00-7f10 r-xp 0 8:1 1 /usr/lib/libcuda.so.1", "libcuda.so.\x1b[2J",
		"a b/libcuda.so 1", " /libcuda.so.1", "(deleted)/libcuda.so.1", "\n/libcuda.so.1",
	} {
		for _, deleted := range []bool{false, true} {
			path := filepath.Join(dir, "x", name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Link(lib, path); err != nil {
				t.Fatal(err)
			}
			p := spawn(t, as(nobody, filepath.Join(dir, "victim"), path), "up")
			if deleted {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			libs, err := findLibraries(p.pid(), []Level{Driver})
			want := path // less what the kernel appends, or seems to have appended
			if !deleted {
				want = strings.TrimSuffix(path, " (deleted)")
			}
			if err != nil || len(libs) != 1 || libs[0].Path != want {
				t.Fatalf("%q, deleted %v: libraries %+v, %v", path, deleted, libs, err)
			}
			if offsets, err := libs[0].functions(known); err != nil || len(offsets) == 0 {
				t.Errorf("%q: %v, %v", path, offsets, err)
			}
			closeAll(libs)
			p.cmd.Process.Kill()
			if err := os.RemoveAll(filepath.Join(dir, "x")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A file that is named like a library and is made to be costly to read costs
// little, and does not keep another from being probed.
func TestSparseLibrary(t *testing.T) {
	dir := open2all(t)
	sparse, good := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libcuda.so.2")
	compile(t, good, "odd.c", "-fPIC", "-shared", "-fvisibility=default")
	compile(t, filepath.Join(dir, "remap"), "remap.c")
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	// The good library, but with tables that the file only seems to have.
	sections := int(binary.LittleEndian.Uint64(text[40:]))
	for at := sections; at+64 <= len(text); at += 64 {
		switch elf.SectionType(binary.LittleEndian.Uint32(text[at+4:])) {
		case elf.SHT_DYNSYM, elf.SHT_SYMTAB, elf.SHT_STRTAB:
			binary.LittleEndian.PutUint64(text[at+32:], 48<<20)
		}
	}
	if err := os.WriteFile(sparse, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(sparse, 1<<30); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, as(nobody, filepath.Join(dir, "remap"), sparse), "up")
	holder := spawn(t, as(nobody, filepath.Join(dir, "remap"), good), "up")
	tr := openTrace(t, Options{All: true})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = tr.Target(p.pid())
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrNoSymbols) {
		t.Errorf("a sparse file: %v, want ErrNoSymbols", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
		t.Errorf("a sparse file took %d MiB", n>>20)
	}
	if _, err := tr.Target(holder.pid()); err != nil || len(tr.probedLibraries()) != 1 {
		t.Errorf("the good one: %v, %q", err, tr.probedLibraries())
	}
}

// openLibraries returns how many CUDA libraries of this test this process has open: with Options.All
// it opens those of other programs on the machine, too.
func openLibraries(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	own := testcuda.Get(t).Dir
	for _, f := range fds {
		if path, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(path, "libcud") && (strings.HasPrefix(path, own) || strings.Contains(path, t.Name())) {
			n++
		}
	}
	return n
}

// A library is open as long as it is probed, and no other.
func TestLibrariesAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes what is forgotten
	kit := testcuda.Get(t)
	p := start(t, testcuda.Workload, testcuda.Options{})
	useless := filepath.Join(t.TempDir(), "libcuda.so.1")
	compile(t, useless, "../../internal/source/proc/testdata/small.c", "-DUSELESS", "-shared", "-fPIC")
	late := workload(t, nil, kit.Path(testcuda.WorkloadLate), kit.Dir)
	late.do("dlopen "+useless+"; echo mapped", "mapped")
	want := func(what string, n int) {
		t.Helper()
		if got := openLibraries(t); got != n {
			t.Errorf("%s: %d libraries are open, want %d", what, got, n)
		}
	}
	want("at first", 0)
	Inspect([]int{p.PID(), late.pid()})
	want("after Inspect", 0)
	tr, err := Open(Options{All: true, API: APIBoth})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Target(p.PID()); err != nil {
		t.Fatal(err)
	}
	want("probed", 2) // libcuda and libcudart
	if _, err := tr.Target(late.pid()); !errors.Is(err, ErrNoSymbols) {
		t.Errorf("a useless library: %v", err)
	}
	want("with a useless one", 2)
	for _, pid := range []int{p.PID(), late.pid()} {
		if _, err := tr.Target(pid); err != nil {
			t.Error(err)
		}
	}
	want("targets again", 2)
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	want("after Close", 0)
}

// Those that are opened ahead are closed as well, whether anybody asks for them or not.
func TestLibrariesAheadAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	needTracing(t)
	t.Setenv("LD_LIBRARY_PATH", testcuda.Get(t).Dir)
	// failing opens with a StackTaker that fails once loading has returned.
	failing := func(opts Options, loading func()) func() error {
		return func() error {
			loaded := make(chan bool, 1)
			opts.Stacks = failingTaker{load: func() error {
				loading()
				loaded <- true
				return os.ErrInvalid
			}}
			if _, err := Open(opts); !errors.Is(err, os.ErrInvalid) {
				t.Errorf("Open: %v", err)
			}
			<-loaded
			return nil
		}
	}
	for what, try := range map[string]func() error{
		"nobody asks": func() error {
			tr, err := Open(Options{Follow: true})
			if err != nil {
				return err
			}
			eventually(t, "a library to be open", func() bool { return openLibraries(t) > 0 })
			return tr.Close()
		},
		"prepared": func() error {
			tr, err := Open(Options{Follow: true, Ahead: true})
			if err != nil {
				return err
			}
			if tr.Prepared() == 0 || openLibraries(t) == 0 {
				t.Error("nothing is probed")
			}
			return tr.Close()
		},
		"Open fails": failing(Options{}, func() {}),
		"Open fails with probes on": failing(Options{Follow: true, Ahead: true}, func() {
			for range 200 {
				if openLibraries(t) > 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(300 * time.Millisecond) // On Linux 6.13 and later the probes are put on in this time.
		}),
	} {
		if err := try(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		eventually(t, what+": all libraries to be closed", func() bool { return openLibraries(t) == 0 })
	}
}

// Every kind of link goes by the open file: after it was opened, another lies at
// its path, and its process is gone.
func TestLinksGoByDescriptor(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	needTracing(t)
	for _, attach := range []ebpf.AttachType{attachSession, ebpf.AttachTraceUprobeMulti, ebpf.AttachNone} {
		t.Run(fmt.Sprint("type ", attach), func(t *testing.T) {
			needAttach(t, attach)
			dir := open2all(t)
			path, old := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "old")
			compile(t, path, "odd.c", "-fPIC", "-shared", "-fvisibility=default")
			compile(t, filepath.Join(dir, "victim"), "victim.c")
			owner := spawn(t, exec.Command(filepath.Join(dir, "victim"), path), "up")
			libs, err := findLibraries(owner.pid(), []Level{Driver})
			if err != nil || len(libs) != 1 {
				t.Fatalf("libraries %v, %v", libs, err)
			}
			owner.cmd.Process.Kill()
			owner.cmd.Wait()
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path, old); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
			same := spawn(t, exec.Command(filepath.Join(dir, "victim"), old), "up")
			another := spawn(t, exec.Command(filepath.Join(dir, "victim"), path), "up")

			spec, err := bpf.LoadGpumemtrace()
			if err != nil {
				t.Fatal(err)
			}
			spec.Programs[enterProgram].AttachType = attach
			spec.Programs[exitProgram].AttachType = attach
			delete(spec.Programs, backProgram)
			delete(spec.Programs, tensorProgram)
			coll, err := ebpf.NewCollection(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer coll.Close()
			a, err := attachRows(libs[0], programs{enter: coll.Programs[enterProgram], exit: coll.Programs[exitProgram], attach: attach}, nil, lasting)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := same.ask("?"), fmt.Sprintf("changed %d", len(a.probed)); got != want {
				t.Errorf("the library: %s bytes, want %s", got, want)
			}
			if got := another.ask("?"); got != "changed 0" {
				t.Errorf("the file at its path: %s bytes", got)
			}
			if err := a.close(); err != nil {
				t.Error(err)
			}
			eventually(t, "the breakpoints to go", func() bool { return same.ask("?") == "changed 0" })
		})
	}
}

// Whoever maps a file chooses what it is called there, and most libraries call
// ioctl or close: only one that calls itself NVIDIA's is probed where it does so.
func TestForeignLibrary(t *testing.T) {
	dir := t.TempDir()
	for i, test := range []struct {
		soname string
		level  Level
		want   bool
	}{
		{"", Vendor, false},
		{"libpython3.so.1.0", Vendor, false},
		{"libcuda.so.1", Vendor, false},
		{"libEGL_nvidia.so.0", Vendor, true},
		{"libnvidia-eglcore.so.580.159.04", Vendor, true},
		{"libEGL_nvidia.so.0", Driver, false},
		{"libcuda.so.1", Driver, true},
	} {
		path := filepath.Join(dir, fmt.Sprint(i), "lib.so")
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		compile(t, path, "caller.c", "-fPIC", "-shared", "-fplt", "-Wl,-soname,"+test.soname)
		f, err := proc.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		lib := newLibrary(f, test.level, "/lib/libEGL_nvidia.so.0")
		offsets, err := lib.functions(known)
		if err != nil {
			t.Fatal(err)
		}
		points, _ := choose(lib.Level, offsets, lasting)
		if probed := len(points) == 2; probed != test.want || len(points) != 0 && !test.want {
			t.Errorf("level %d, itself %q: %d points, want any: %v", test.level, test.soname, len(points), test.want)
		}
		lib.Close()
	}
}

// A libcuda whose calls of the kernel driver cannot be found is traced all the same,
// and what is missing has its name.
func TestUnreadableStubs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	compile(t, path, "odd.c", "testdata/caller.c", "-fPIC", "-shared", "-fplt", "-Wl,-soname,libcuda.so.1")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table, count := binary.LittleEndian.Uint64(b[40:]), binary.LittleEndian.Uint16(b[60:])
	for s := b[table:][:int(count)*64]; len(s) > 0; s = s[64:] {
		if elf.SectionType(binary.LittleEndian.Uint32(s[4:])) == elf.SHT_RELA {
			binary.LittleEndian.PutUint64(s[32:], 1<<40) // its size
		}
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := proc.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	lib := newLibrary(f, Driver, path)
	defer lib.Close()
	offsets, err := lib.functions(known)
	if err != nil {
		t.Fatal(err)
	}
	points, missing := choose(Driver, offsets, lasting)
	if len(points) == 0 || !slices.Contains(missing, "ioctl@plt") || slices.Contains(missing, "cuMemAlloc_v2") {
		t.Errorf("%d points; missing %q", len(points), missing)
	}
}
