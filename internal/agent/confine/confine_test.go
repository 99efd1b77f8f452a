package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is the confined program, too: it tells each thread's capabilities.
func TestMain(m *testing.M) {
	if os.Getenv("CONFINED") == "" {
		os.Exit(m.Run())
	}
	if err := Capabilities(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(os.Getpid(), os.Args[1:])
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for line := range strings.Lines(string(text)) {
			switch name, value, _ := strings.Cut(line, ":"); name {
			case "CapInh", "CapPrm", "CapEff", "NoNewPrivs":
				fmt.Println(name, strings.TrimSpace(value))
			}
		}
	}
}

// program returns the path of a copy of this one that every user may start.
func program(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "confine-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "confined")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// run returns what the confined program says, which root starts with all that it has,
// another user with some capabilities.
func run(t *testing.T, user int, ambient uint64) (pid int, said string) {
	t.Helper()
	cmd := exec.Command(program(t), "an argument")
	cmd.Env = append(os.Environ(), "CONFINED=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if user != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
		for bit := range unix.CAP_LAST_CAP + 1 {
			if ambient>>bit&1 != 0 {
				cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, uintptr(bit))
			}
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return cmd.Process.Pid, string(out)
}

// After it no thread has more, and the program is the same process.
func TestCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root alone has capabilities to give up")
	}
	had, err := own()
	if err != nil {
		t.Fatal(err)
	}
	needed, err := Needed()
	if err != nil {
		t.Fatal(err)
	}
	want := had.permitted & bits(needed...)
	if want != bits(needed...) {
		t.Fatalf("this test has %x of %x", want, bits(needed...))
	}
	for _, user := range []int{0, 65534} {
		pid, said := run(t, user, want|bits(unix.CAP_NET_ADMIN, unix.CAP_SETUID))
		inherits := uint64(0)
		if user != 0 {
			inherits = want
		}
		each := fmt.Sprintf("CapInh %016x\nCapPrm %016x\nCapEff %016x\nNoNewPrivs 1\n", inherits, want, want)
		first, rest, _ := strings.Cut(said, "\n")
		if first != fmt.Sprint(pid, " [an argument]") {
			t.Errorf("user %d: %q is not process %d with its argument", user, first, pid)
		}
		if rest == "" || strings.ReplaceAll(rest, each, "") != "" {
			t.Errorf("user %d:\n%s\nwant of each thread\n%s", user, rest, each)
		}
	}
}

// Whether CAP_SYS_ADMIN is kept is what the kernel itself says to a process without it,
// and asking leaves the capabilities as they were.
func TestNeeded(t *testing.T) {
	before, err := own()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Needed()
	if err != nil || !slices.Equal(got[:len(always)], always) {
		t.Fatalf("%d, %v", got, err)
	}
	if after, err := own(); err != nil || after != before {
		t.Errorf("%x before, %x after, %v", before, after, err)
	}
	kind, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	if err != nil {
		t.Fatal(err)
	}
	var number uint32
	if _, err := fmt.Sscan(string(kind), &number); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // and not unlocked: the thread ends with the test
	few := set{bits(always...), bits(always...), 0}
	if err := few.assume(); err != nil {
		t.Fatal(err)
	}
	_, err = unix.PerfEventOpen(&unix.PerfEventAttr{Type: number, Size: unix.PERF_ATTR_SIZE_VER5}, -1, 0, -1, 0)
	if kept := slices.Contains(got, unix.CAP_SYS_ADMIN); kept != errors.Is(err, unix.EACCES) || !kept && !errors.Is(err, unix.EINVAL) {
		t.Errorf("CAP_SYS_ADMIN is kept: %v, but without it: %v", kept, err)
	}
	t.Logf("without CAP_SYS_ADMIN: %v", err)
}

// What has less gains nothing.
func TestFewCapabilities(t *testing.T) {
	_, said := run(t, 65534, bits(unix.CAP_SYS_PTRACE))
	if want := fmt.Sprintf("CapPrm %016x\n", bits(unix.CAP_SYS_PTRACE)); !strings.Contains(said, want) {
		t.Errorf("%s\nwant %s", said, want)
	}
}
