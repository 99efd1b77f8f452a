package proc

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const nobody = 1 << 30 // no process has this number

func TestParseStatus(t *testing.T) {
	const plain = "Name:\ta\\nUid:\t7 7 7 7\nTgid:\t40\nUid:\t1000\t0\t1000\t1000\n"
	for _, tt := range []struct {
		text string
		want Status
	}{
		{plain, Status{Process: 40}},
		{plain + "NStgid:\t40\t3\t1\n", Status{Process: 40, Numbers: []int{40, 3, 1}}},
		{plain + "CapEff:\t000001ffffffffff\nSeccomp:\t2\nSeccomp_filters:\t1\n", Status{Process: 40, Capabilities: 0x1ffffffffff, Seccomp: "2"}},
		{plain + "Seccomp:\t\n\n:\nCapEff", Status{Process: 40}},
	} {
		got, err := parseStatus([]byte(tt.text))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%q: %+v, %v", tt.text, got, err)
		}
	}
	for _, text := range []string{"", "Tgid:\t40\n", "Uid:\t0 0 0 0\n", "Tgid:\tx\nUid:\t0 0 0 0\n", "Tgid:\t40\nUid:\t0 -1 0 0\n", plain + "CapEff:\tx\n", plain + "NStgid:\t40 99999999999\n"} {
		if s, err := parseStatus([]byte(text)); err == nil {
			t.Errorf("%q: %+v without an error", text, s)
		}
	}
	s, err := ReadStatus(os.Getpid())
	if err != nil || int(s.User) != os.Geteuid() || os.Geteuid() == 0 && s.Capabilities == 0 {
		t.Errorf("this process: %+v, %v", s, err)
	}
}

func TestNamespace(t *testing.T) {
	for _, kind := range []string{"pid", "user"} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+kind, &st); err != nil {
			t.Fatal(err)
		}
		if got, err := Namespace(kind); err != nil || uint64(got) != st.Ino {
			t.Errorf("%s: %d, %v, want %d", kind, got, err, st.Ino)
		}
	}
	if n, err := Namespace("none"); err == nil {
		t.Errorf("no kind of namespace: %d", n)
	}
	number, err := Namespace("pid")
	if got := InitialPIDNamespace(); err != nil || got != (number == InitialPID) {
		t.Errorf("PID namespace %d: %t, %v", number, got, err)
	}
}

// A command line is shown as one line, of a long one the beginning.
func TestCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"": "",
		"python3\x00train.py\x00--lr\x001e-3\x00": "python3 train.py --lr 1e-3",
		"postgres: writer   \x00\x00\x00":         "postgres: writer",
		"a\x00\x00b\x00":                          "a  b",
		"\xff\x1b[2J\x00":                         "\uFFFD\x1b[2J",
		strings.Repeat("é", 200):                  strings.Repeat("é", 148) + "…",
		strings.Repeat("x", 300):                  strings.Repeat("x", 300),
		strings.Repeat("x", 301):                  strings.Repeat("x", 297) + "…",
	} {
		if got := commandLine([]byte(args)); got != want {
			t.Errorf("%q is %q, want %q", args, got, want)
		}
	}
	cmd := exec.Command("sleep", append([]string{"60"}, strings.Fields(strings.Repeat(" 0", 10_000))...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	eventually(t, "a command line", func() bool {
		got, err := CommandLine(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(got, "sleep 60 0 0") && len(got) == maxCommand
	})
	if _, err := CommandLine(nobody); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
}

func TestEnviron(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.Env = []string{"XA=9", "A=1", "B=", "A=2", "D=x=y"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	// The kernel lends it its environment a moment after its image.
	eventually(t, "an environment", func() bool {
		set, err := Environ(cmd.Process.Pid, "A")
		return err != nil || len(set) > 0
	})
	want := map[string]string{"A": "2", "B": "", "D": "x=y"} // os/exec keeps the last
	if got, err := Environ(cmd.Process.Pid, "A", "B", "C", "D"); err != nil || !maps.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if got := parseEnviron([]byte("XA=9\x00A=1\x00A=2\x00A\x00B"), []string{"A", "B"}); !maps.Equal(got, map[string]string{"A": "1"}) {
		t.Errorf("of two equal names: %q", got)
	}
	if _, err := Environ(nobody, "A"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
}

func TestOpenFiles(t *testing.T) {
	const many = someNames + 10 // more than are read at a time
	name := filepath.Join(t.TempDir(), "a b\n")
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range many {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	files, pipes := 0, 0
	for path, err := range OpenFiles(os.Getpid()) {
		if err != nil {
			t.Fatal(err)
		}
		if path == name {
			files++
		}
		if strings.HasPrefix(path, "pipe:[") {
			pipes++
		}
	}
	if files != many || pipes < 2 {
		t.Errorf("%d files, %d pipes, want %d and 2", files, pipes, many)
	}
	seen := 0
	for _, err := range OpenFiles(nobody) {
		if seen++; !errors.Is(err, os.ErrNotExist) {
			t.Errorf("of no process: %v", err)
		}
	}
	if seen != 1 {
		t.Errorf("of no process: yielded %d times", seen)
	}
}

// In a root of its own a process has devices of its own.
func TestDevices(t *testing.T) {
	null := unix.Mkdev(1, 3)
	if got, err := Devices(os.Getpid()); err != nil || got["null"] != null {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Devices(nobody); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
	for name, tt := range map[string]struct {
		dev   func(dir string) error
		want  map[string]uint64
		fails bool
	}{
		"one device": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o755), unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(null)),
				os.WriteFile(dir+"/file", nil, 0o644), os.Symlink("null", dir+"/link"), os.Mkdir(dir+"/sub", 0o755))
		}, map[string]uint64{"null": null}, false},
		"a link":   {func(dir string) error { return os.Symlink("/dev", dir) }, nil, true},
		"too many": {manyFiles, nil, true},
		"none":     {func(string) error { return nil }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := tt.dev(root + "/dev"); err != nil {
				t.Fatal(err)
			}
			got, err := readDevices(chrooted(t, root), 4)
			if !maps.Equal(got, tt.want) || (err != nil) != tt.fails {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// chrooted returns a thread whose root is dir until the test ends.
func chrooted(t *testing.T, dir string) int {
	t.Helper()
	type result struct {
		tid int
		err error
	}
	up, done := make(chan result), make(chan struct{})
	t.Cleanup(func() { close(done) })
	var change func()
	change = func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			// The first thread does not, and its root is the process's.
			defer runtime.UnlockOSThread()
			go change()
			<-done
			return
		}
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chroot(dir)
		}
		up <- result{unix.Gettid(), err}
		<-done
	}
	go change()
	r := <-up
	if r.err != nil {
		t.Fatalf("change a thread's root: %v", r.err)
	}
	return r.tid
}

// manyFiles makes a directory with more files than are looked at.
func manyFiles(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for i := range 5 {
		if err := unix.Mknod(fmt.Sprintf("%s/%d", dir, i), unix.S_IFREG|0o644, 0); err != nil {
			return err
		}
	}
	return nil
}

func TestEntryPoint(t *testing.T) {
	f, _, err := OpenExecutable(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := f.ELF()
	if err != nil {
		t.Fatal(err)
	}
	// A program that may be loaded anywhere is moved by whole pages.
	if got, err := EntryPoint(os.Getpid()); err != nil || got%4096 != e.Entry%4096 {
		t.Errorf("%#x, %v, want %#x", got, err, e.Entry)
	}
	if _, err := EntryPoint(nobody); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
}

func TestSysctl(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if got, want := Sysctl("kernel/osrelease"), unix.ByteSliceToString(u.Release[:]); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Sysctl("kernel/none"); got != "" {
		t.Errorf("no parameter: %q", got)
	}
}

func TestListsDriver(t *testing.T) {
	const others = "Character devices:\n  1 mem\n %s\n510 nvidia-uvm\n\nBlock devices:\n  7 loop\n"
	for line, want := range map[string]bool{
		"195 nvidia": true, "195 nvidia-frontend": true, "195 nvidiactl": true, "195 other": false, "1195 nvidia": false, "": false,
	} {
		if got := listsDriver(fmt.Appendf(nil, others, line)); got != want {
			t.Errorf("%q: %t, want %t", line, got, want)
		}
	}
	if DriverLoaded() && DriverVersion() == "" {
		t.Error("here is a driver without a version")
	}
}

func TestReadTooMuch(t *testing.T) {
	if _, err := read(os.Getpid(), "comm", 2); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
}

func TestDriverVersion(t *testing.T) {
	const gcc = "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)  Tue Nov 4 05:22:41 UTC 2025\n" + gcc: "580.159.04",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.98  Sat Aug 19 01:15:15 UTC 2023\n" + gcc:                                            "535.98",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  470.256.02":                                                                             "470.256.02",

		"":                              "",
		gcc:                             "",
		"\n" + gcc:                      "",
		"NVRM version: none\n580.1\n":   "",
		"NVRM version: 580\n":           "",
		"NVRM version: \x1b[2J580.1\n":  "",
		"NVRM version:\x00580.159.04\n": "",
		"nvrm version: 580.1\n":         "",
	} {
		if got := parseDriverVersion([]byte(text)); got != want {
			t.Errorf("%.80q: %q, want %q", text, got, want)
		}
	}
	// What it says of this machine is a version or nothing.
	if got := DriverVersion(); strings.Trim(got, "0123456789.") != "" {
		t.Errorf("here: %q", got)
	}
}
