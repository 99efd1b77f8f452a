package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		out = append(out, f.Name())
	}
	return out
}

// What is wrong with the output is found before the trace starts: the command
// to trace does not run.
func TestOutputIsCheckedFirst(t *testing.T) {
	needTracing(t)
	dir := t.TempDir()
	existing := filepath.Join(dir, "existing.pb.gz")
	if err := os.WriteFile(existing, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := mount(t, "size=64k")
	if err := syscall.Mount("none", readOnly, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		says string
	}{
		{existing, "--force"},
		{filepath.Join(dir, "no/such/x.pb.gz"), "no such file or directory"},
		{filepath.Join(existing, "x.pb.gz"), "not a directory"},
		{filepath.Join(readOnly, "x.pb.gz"), "read-only file system"},
		{dir, dir},
	} {
		ran := filepath.Join(t.TempDir(), "ran")
		v := command(t, "--stacks", "fp", "-o", c.path, "--", "touch", ran).start().ends(exitFailed)
		v.says(c.path, c.says)
		if exists(t, ran) {
			t.Errorf("%s: the command ran", c.path)
		}
	}
	if string(read(t, existing)) != "before" {
		t.Error("the existing file changed")
	}
	command(t, "--stacks", "fp", "-o", existing, "--force", "--", "true").start().ends(exitDone)
	readPprof(t, read(t, existing))
	if !slices.Equal(names(t, dir), []string{"existing.pb.gz"}) {
		t.Errorf("files %q", names(t, dir))
	}
}

// The ready file says what it should say: it is created, and nothing that was
// there in its place is followed, emptied or taken for it.
func TestReadyFile(t *testing.T) {
	needTracing(t)
	dir := t.TempDir()
	victim, missing := filepath.Join(dir, "victim"), filepath.Join(dir, "missing")
	if err := os.WriteFile(victim, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, path string
		force      bool
		says       string // "" where it is created
	}{
		{"new", filepath.Join(dir, "new"), false, ""},
		{"there", victim, false, "--force"},
		{"link", link("link", victim), false, "--force"},
		{"link to nothing", link("dangling", missing), false, "--force"},
		{"link, forced", link("forced", victim), true, ""},
		{"there, forced", filepath.Join(dir, "new"), true, ""},
		{"directory", dir, true, "is a directory"},
		{"no directory", filepath.Join(dir, "no", "ready"), false, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			args := []string{"--stacks", "fp", "-o", "x.pb.gz", "--ready-file", c.path}
			if c.force {
				args = append(args, "--force")
			}
			v := command(t, append(args, "--", "touch", ran)...).start()
			if c.says != "" {
				v.ends(exitFailed).says(c.path, c.says)
			} else {
				v.ends(exitDone)
				if info, err := os.Lstat(c.path); err != nil || !info.Mode().IsRegular() || info.Size() != 0 {
					t.Errorf("%v, %v, want an empty regular file", info, err)
				}
			}
			if exists(t, ran) != (c.says == "") {
				t.Errorf("the command ran: %t", exists(t, ran))
			}
		})
	}
	if string(read(t, victim)) != "before" || exists(t, missing) {
		t.Error("a link was followed")
	}
}

// On a full disk the previous file survives, and nothing else is left.
func TestFullDisk(t *testing.T) {
	dir := mount(t, "size=128k")
	path, fill := filepath.Join(dir, "x.pb.gz"), filepath.Join(dir, "fill")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "-o", path, "--force")
	script(t, p, leave23)
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	v.signal(syscall.SIGUSR1) // which cannot be written: the trace goes on
	v.until("it says so", func() bool { return strings.Contains(v.stderr.String(), "no space left on device") })
	v.signal(syscall.SIGINT)
	v.ends(exitFailed).says(path, "no space left on device")
	if !strings.Contains(v.stderr.String(), "\nAllocated by each process, ") { // the summary needs no disk
		t.Errorf("it says %s", v.stderr.String())
	}
	if string(read(t, path)) != "before" || !slices.Equal(names(t, dir), []string{"fill", "x.pb.gz"}) {
		t.Errorf("files %q", names(t, dir))
	}
}

func TestNumberedFiles(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "-o", "x.pb.gz")
	for n := range 3 {
		script(t, p, "cuMemAlloc_v2 1000")
		v.signal(syscall.SIGUSR1)
		path := filepath.Join(v.cmd.Dir, fmt.Sprintf("x.%06d.pb.gz", n+1))
		v.until("a numbered file is there", func() bool { return exists(t, path) })
		if o, _ := inuse(t, read(t, path)); o > int64(n+1) {
			t.Errorf("file %d holds %d objects", n+1, o)
		}
	}
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	if o, b := inuse(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz"))); o != 3 || b != 3000 {
		t.Errorf("%d objects, %d bytes, want 3 and 3000", o, b)
	}
	want := []string{"x.000001.pb.gz", "x.000002.pb.gz", "x.000003.pb.gz", "x.pb.gz"}
	if got := names(t, v.cmd.Dir); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}

func TestInterval(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "-o", "x.csv", "--interval", "100ms")
	script(t, p, leave23)
	v.until("three files are there", func() bool { return exists(t, filepath.Join(v.cmd.Dir, "x.000003.csv")) })
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	if n := bytes.Count(read(t, filepath.Join(v.cmd.Dir, "x.csv")), []byte("\n")); n != objects+1 {
		t.Errorf("%d lines, want %d", n, objects+1)
	}
}

// kinds are BPF objects by the command of bpf(2) that finds the next one after
// an id. It takes no reference: to open a prog array that is being released
// can leak it (prog_array_map_clear in kernel/bpf/arraymap.c).
var kinds = map[uintptr]string{
	unix.BPF_PROG_GET_NEXT_ID: "prog", unix.BPF_MAP_GET_NEXT_ID: "map", unix.BPF_LINK_GET_NEXT_ID: "link",
}

// kernelObjects are the ids of the BPF objects that a process holds, as kinds.
func kernelObjects(t *testing.T, pid int) map[uintptr][]uint32 {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	objects := map[uintptr][]uint32{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(text)) {
			for command, kind := range kinds {
				var id uint32
				if n, _ := fmt.Sscanf(line, kind+"_id:\t%d", &id); n == 1 {
					objects[command] = append(objects[command], id)
				}
			}
		}
	}
	return objects
}

// leavesNothing waits until the kernel has none of the objects.
func (v *invocation) leavesNothing(objects map[uintptr][]uint32) {
	v.Helper()
	if n := len(objects[unix.BPF_LINK_GET_NEXT_ID]); n < 4 {
		v.Fatalf("it held %d links", n)
	}
	left := func() (left []string) {
		for command, ids := range objects {
			for _, id := range ids {
				attr := [3]uint32{id - 1} // start_id, next_id, open_flags
				_, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
				if errno != 0 && errno != unix.ENOENT {
					v.Fatalf("look for an object: %v", errno)
				}
				if errno == 0 && attr[1] == id {
					left = append(left, fmt.Sprintf("%s %d", kinds[command], id))
				}
			}
		}
		return left
	}
	// What is freed in the background is free a grace period later.
	for end := time.Now().Add(5 * time.Minute); len(left()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			v.Fatalf("left behind: %q", left())
		}
	}
}

// However a trace ends, no probe stays behind and the program runs on.
func TestLeavesNothingBehind(t *testing.T) {
	for _, mode := range []string{"fp", "auto"} {
		t.Run(mode, func(t *testing.T) {
			for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
				p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
				v := tracing(t, "-p", pid(p), "--stacks", mode, "-o", "x.pb.gz")
				held := kernelObjects(t, v.cmd.Process.Pid)
				v.signal(sig)
				<-v.exited
				v.leavesNothing(held)
				script(t, p, "row cuMemAlloc_v2")
				if sig == syscall.SIGKILL && len(names(t, v.cmd.Dir)) != 0 {
					t.Errorf("files %q", names(t, v.cmd.Dir))
				}
			}
		})
	}
}

// The second SIGINT ends a program that waits for its command, or for a reader
// of its output, once its probes are off.
func TestSecondInterrupt(t *testing.T) {
	t.Run("waiting for the command", func(t *testing.T) {
		kit := testcuda.Get(t)
		v := tracing(t, "-o", "x.pb.gz", "--", kit.Path(testcuda.Workload), leave23+";ready;sleep 60000")
		child := childOf(t, v.cmd.Process.Pid)
		defer syscall.Kill(child, syscall.SIGKILL) // nobody else would
		v.until("the command allocated", func() bool { return strings.Contains(v.stdout.String(), "ready") })
		held := kernelObjects(t, v.cmd.Process.Pid)
		v.signal(syscall.SIGINT)
		v.until("the profile is there", func() bool { return exists(t, filepath.Join(v.cmd.Dir, "x.pb.gz")) })
		v.until("it has said so", func() bool { return strings.Contains(v.stderr.String(), "go tool pprof") })
		v.signal(syscall.SIGINT)
		v.ends(128 + int(syscall.SIGINT)).says("quit")
		v.leavesNothing(held)
	})
	t.Run("writing", func(t *testing.T) {
		needTracing(t)
		p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		ready := filepath.Join(t.TempDir(), "ready")
		v := command(t, "--stacks", "fp", "--ready-file", ready, "-p", pid(p), "-o", "-", "--format", "json")
		v.cmd.Stdout = w
		v.start()
		w.Close()
		v.until("it is ready", func() bool { return exists(t, ready) })
		held := kernelObjects(t, v.cmd.Process.Pid)
		script(t, p, "repeat 10000 cuMemAlloc_v2 512") // more than a pipe holds
		v.signal(syscall.SIGINT)
		v.until("it waits for a reader", func() bool {
			n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
			return err == nil && n > 0
		})
		v.signal(syscall.SIGINT)
		v.ends(128 + int(syscall.SIGINT)).says("quit")
		v.leavesNothing(held)
	})
}

// childOf returns the only child of a process.
func childOf(t *testing.T, pid int) (child int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		fmt.Sscan(string(read(t, f)), &child)
	}
	if child == 0 {
		t.Fatalf("process %d has no child", pid)
	}
	return child
}

// What another user has put into a shared directory leads nowhere: neither where a file of
// ours has its name, nor on the way to it.
func TestPlantedLinks(t *testing.T) {
	needTracing(t)
	dir, victim := filepath.Join(t.TempDir(), "shared"), t.TempDir()
	for path := dir; path != "/"; path = filepath.Dir(path) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err == nil && strings.Contains(path, "Test") {
			os.Chmod(path, info.Mode().Perm()|0o055)
		}
	}
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(victim, "file"), []byte("before"), 0o600)); err != nil {
		t.Fatal(err)
	}
	plant := exec.Command("sh", "-c", `ln -s "$1" link && ln -s "$1/file" file && ln -s "$1/new" dangling && ln -s "$1/made" missing &&
		mkfifo pipe && mkdir -m 755 theirs && ln -s "$1" theirs/link`, "sh", victim)
	plant.Dir = dir
	plant.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := plant.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	recording, err := filepath.Abs("../../test/recordings/out_of_memory.gmt")
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	trace := func(args ...string) []string {
		return append(append([]string{"--stacks", "fp", "--force"}, args...), "--", "true")
	}
	links := "belongs to user 65534"
	for _, c := range []struct {
		args []string
		says string // "" where it is done
	}{
		{trace("-o", "x.pb.gz", "--record", at("link/run.gmt")), links},
		{trace("-o", "x.pb.gz", "--record", at("theirs/link/run.gmt")), links},
		{trace("-o", "x.pb.gz", "--oom-dir", at("link")), links},
		{trace("-o", "x.pb.gz", "--oom-dir", at("missing")), links},
		{trace("-o", "x.pb.gz", "--oom-dir", at("link/oom")), links},
		{trace("-o", at("link/x.pb.gz")), links},
		{trace("-o", "x.pb.gz", "--ready-file", at("link/ready")), links},
		{trace("-o", "x.pb.gz", "--record", at("pipe")), "not a regular file"},
		{trace("-o", at("pipe"), "--format", "pprof"), "not a regular file"},
		{[]string{"convert", recording, "-o", at("link/x.pb.gz")}, links},
		{[]string{"convert", recording, "-o", "x.pb.gz", "--oom-dir", at("link")}, links},
		{[]string{"agent", "--record", at("link")}, links},
		{[]string{"agent", "--record", at("missing")}, links},
		{[]string{"agent", "--record", at("theirs")}, "belongs to user 65534"},
		{[]string{"agent", "--oom-dir", at("link")}, links},
		{[]string{"agent", "--oom-dir", at("theirs")}, "belongs to user 65534"},
		{[]string{"agent", "--oom-dir", dir}, "others may write to " + dir},
		// The link itself goes, and what it leads to stays.
		{trace("-o", "x.pb.gz", "--record", at("file")), ""},
		{trace("-o", "x.pb.gz", "--record", at("dangling")), ""},
	} {
		v := command(t, c.args...).start()
		if c.says == "" {
			v.ends(exitDone)
			continue
		}
		v.ends(exitFailed)
		if !strings.Contains(v.stderr.String(), c.says) {
			t.Errorf("%q: %s", c.args, v.stderr.String())
		}
	}
	for _, name := range []string{"file", "dangling"} {
		if info, err := os.Lstat(at(name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s is %v, %v", name, info, err)
		}
	}
	if string(read(t, filepath.Join(victim, "file"))) != "before" || !slices.Equal(names(t, victim), []string{"file"}) {
		t.Errorf("files %q", names(t, victim))
	}
}
