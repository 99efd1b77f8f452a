package proc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapFile maps a page of a file executably, and returns the mapping as the
// kernel shows it.
func mapFile(t *testing.T, path string) *Mapping {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	for m, err := range Mappings(os.Getpid()) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Holds(uint64(uintptr(unsafe.Pointer(&b[0])))) {
			return &m
		}
	}
	t.Fatalf("%q is not mapped", path)
	return nil
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// contents opens what m maps and returns what is in it.
func contents(t *testing.T, dir string, m *Mapping) string {
	t.Helper()
	f, err := openMapped(dir, m)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	// The link leads to the open file, whatever is done to its path.
	var st unix.Stat_t
	if err := unix.Stat(f.Link(), &st); err != nil || (FileID{st.Dev, st.Ino}) != f.ID {
		t.Errorf("%s leads to %d:%d, %v, want %v", f.Link(), st.Dev, st.Ino, err, f.ID)
	}
	b, err := io.ReadAll(f)
	if err != nil || int64(len(b)) != f.Size {
		t.Errorf("read %d of %d bytes: %v", len(b), f.Size, err)
	}
	return string(b)
}

// What happens to a file and its path after it was mapped does not matter, nor
// what its name looks like.
func TestOpenMapped(t *testing.T) {
	for _, name := range []string{
		"libcuda.so.1", "a b/lib cuda.so.1", "a\nb", "a\x1b[2J\x07b", "gone (deleted)", `a\012b`, " leading", "trailing ", "r-xp 0 0:0 0 /x",
	} {
		path := filepath.Join(t.TempDir(), name)
		writeFile(t, path, "mapped")
		m := mapFile(t, path)
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"as it was", func() error { return nil }},
			{"renamed", func() error { return os.Rename(path, path+".old") }},
			{"replaced", func() error { return os.WriteFile(path, []byte("another"), 0o644) }},
			{"deleted", func() error { return os.Remove(path + ".old") }},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			if got := contents(t, dirOf(os.Getpid()), m); got != "mapped" {
				t.Errorf("%q %s: got %q", name, step.name, got)
			}
		}
	}
}

// Without map_files a path is believed only if it leads to the mapped file.
func TestOpenMappedByPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/proc/self/root", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	writeFile(t, path, "mapped")
	m := mapFile(t, path)
	if got := contents(t, dir, m); got != "mapped" {
		t.Errorf("got %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		make func() error
		want error
	}{
		{"gone", func() error { return nil }, os.ErrNotExist},
		{"replaced", func() error { return os.WriteFile(path, []byte("another"), 0o644) }, ErrRemapped},
		{"a link to another", func() error { return os.Symlink("/bin/sh", path) }, ErrRemapped},
		{"a directory", func() error { return os.Mkdir(path, 0o755) }, os.ErrNotExist},
		{"a FIFO", func() error { return unix.Mkfifo(path, 0o644) }, os.ErrNotExist},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		if f, err := openMapped(dir, m); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, f, err, c.want)
		}
		os.Remove(path)
	}
	for _, m := range []*Mapping{{Path: "[vdso]"}, {Path: ""}, {Path: "go.mod", File: FileID{1, 1}}} {
		if f, err := openMapped(dir, m); err == nil {
			t.Errorf("%q was opened: %v", m.Path, f)
		}
	}
}

// A mapping that is something else by now is not taken for what it was.
func TestOpenRemapped(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	writeFile(t, a, "a")
	writeFile(t, b, "b")
	m := mapFile(t, a)
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, e := unix.Syscall6(unix.SYS_MMAP, uintptr(m.Start), uintptr(m.End-m.Start), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED, f.Fd(), 0); e != 0 {
		t.Fatal(e)
	}
	if f, err := OpenMapped(os.Getpid(), m); !errors.Is(err, ErrRemapped) {
		t.Errorf("%v, %v, want ErrRemapped", f, err)
	}
}

// What is no regular file is not opened, which would have effects: a FIFO
// blocks, a terminal or a watchdog does worse.
func TestOpenIrregular(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(fifo, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := OpenRoot(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, path := range []string{fifo, filepath.Join(dir, "link"), dir, "/dev/zero", "/dev/tty"} {
		if f, err := Open(path); !errors.Is(err, ErrIrregular) {
			t.Errorf("%s: %v, %v, want ErrIrregular", path, f, err)
		}
		if f, err := root.Open(path, 0); !errors.Is(err, ErrIrregular) {
			t.Errorf("%s below the root: %v, %v, want ErrIrregular", path, f, err)
		}
	}
}

// Closing a file is not waited for for ever. A socket that lingers stands for a
// file of a file system in user space that does not answer.
func TestCloseThatHangs(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.File() // blocking
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	fd := int(f.Fd())
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		t.Fatal(err)
	}
	for text := make([]byte, 1<<20); err == nil; {
		_, err = unix.SendmsgN(fd, text, nil, nil, unix.MSG_DONTWAIT) // until nobody takes more
	}
	if err := (&File{File: f}).Close(); err != nil { // it does not wait for the hour
		t.Error(err)
	}
}

// No symbolic link leads out of a root.
func TestRoot(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "root")
	writeFile(t, filepath.Join(inside, "etc/file"), "inside")
	writeFile(t, filepath.Join(dir, "outside"), "outside")
	for link, to := range map[string]string{"up": "../../outside", "absolute": "/etc/file", "escape": filepath.Join(dir, "outside"), "magic": "/proc/self/root/etc/passwd"} {
		if err := os.Symlink(to, filepath.Join(inside, link)); err != nil {
			t.Fatal(err)
		}
	}
	process := t.TempDir()
	if err := os.Symlink(inside, filepath.Join(process, "root")); err != nil {
		t.Fatal(err)
	}
	r, err := openRoot(process)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for path, want := range map[string]string{"/etc/file": "inside", "absolute": "inside", "../outside": "", "up": "", "escape": "", "magic": ""} {
		f, err := r.Open(path, 0)
		got := ""
		if err == nil {
			b, _ := io.ReadAll(f)
			f.Close()
			got = string(b)
		}
		if got != want {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
	if _, err := r.Open("absolute", unix.RESOLVE_NO_SYMLINKS); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a symbolic link: %v, want ELOOP", err)
	}
}

// The owner of a file may lease it: who opens it then waits for 45 s.
func TestOpenLeased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	writeFile(t, path, "mapped")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	g, err := Open(path)
	if !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("%v, %v", g, err)
	}
}

func TestOpenExecutable(t *testing.T) {
	f, path, err := OpenExecutable(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if exe, _ := os.Executable(); path != exe {
		t.Errorf("path %q, want %q", path, exe)
	}
	if _, err := f.ELF(); err != nil {
		t.Error(err)
	}
	if _, _, err := OpenExecutable(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
}

// An error leaves no descriptor behind.
func TestOpenLeavesNothing(t *testing.T) {
	open := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	dir := t.TempDir()
	if err := os.Symlink("/proc/self/root", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	before := open()
	for range 20 {
		Open("/dev/zero")
		Open(filepath.Join(dir, "none"))
		openMapped(dir, &Mapping{Path: "/bin/sh", File: FileID{1, 1}})
		openMapped(dirOf(os.Getpid()), &Mapping{Path: "/bin/sh", File: FileID{1, 1}})
		if _, err := openRoot(dir + "/none"); err == nil || !strings.Contains(err.Error(), "root") {
			t.Error(err)
		}
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func ExampleFile_Link() {
	f, err := Open("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Println(strings.HasPrefix(f.Link(), "/proc/self/fd/"))
	// Output: true
}
