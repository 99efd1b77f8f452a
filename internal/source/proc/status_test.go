package proc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// sleeper starts a process that waits, under a command name.
func sleeper(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	cat, err := os.ReadFile("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, cat, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	// It runs once it answers.
	if _, err := io.WriteString(in, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// eventually waits for what another process does.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

// A command name may be made to look like the rest of its line.
func TestStat(t *testing.T) {
	for _, name := range []string{"plain", "a b", ") R 1 1 1 1", "))((", "a\nb) Z 7", "x\x1b[2J"} {
		cmd := sleeper(t, name)
		pid := cmd.Process.Pid
		if got := Comm(pid); got != name {
			t.Errorf("comm %q, want %q", got, name)
		}
		if got, err := Parent(pid); err != nil || got != os.Getpid() {
			t.Errorf("%q: parent %d, %v, want %d", name, got, err, os.Getpid())
		}
		own, err := StartTicks(os.Getpid())
		if err != nil || own == 0 {
			t.Errorf("this process began at %d, %v", own, err)
		}
		if got, err := StartTicks(pid); err != nil || got < own || got > own+100*600 {
			t.Errorf("%q: began at %d, %v, this process at %d", name, got, err, own)
		}
		if s, err := ReadStatus(pid); err != nil || s.Process != pid || !slices.Equal(s.Numbers, []int{pid}) || int(s.User) != os.Geteuid() || Kernel(pid) {
			t.Errorf("%q: status %+v, %v", name, s, err)
		}
		began, _ := StartTicks(pid)
		if Ended(pid) || EndedSince(pid, began) {
			t.Errorf("%q has ended", name)
		}
		if !EndedSince(pid, began-1) {
			t.Errorf("%q is taken for the process that had its PID before", name)
		}
		cmd.Process.Kill()
		eventually(t, "a process to end", func() bool { return Ended(pid) && EndedSince(pid, began) })
		if Comm(pid) != name {
			t.Errorf("%q: a process that was not waited for has lost its name", name)
		}
		cmd.Wait()
		if _, err := StartTicks(pid); !errors.Is(err, os.ErrNotExist) || !Ended(pid) || !EndedSince(pid, began) || Comm(pid) != "" {
			t.Errorf("a process that is gone: %v, ended %v, %v, comm %q", err, Ended(pid), EndedSince(pid, began), Comm(pid))
		}
		if _, err := Parent(pid); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("parent of a process that is gone: %v", err)
		}
		if _, err := ReadStatus(pid); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("status of a process that is gone: %v", err)
		}
	}
}

// What Linux says of its own threads: 6.1 in stat alone, and 6.8 as well in status.
func TestKernel(t *testing.T) {
	for line, want := range map[string]bool{
		"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 11 0 0 18446744073709551615 0\n":                  true,
		"41 (kworker/0:1-mm_percpu_wq) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 20 0 1 0 60 0 0 18446744073709551615\n":  true,
		"1 (init) S 0 1 1 0 -1 4194560 8 0 0 0 1 2 0 0 20 0 1 0 12 4194304 300 18446744073709551615 1\n":              false,
		"7 (kthreadd) S 2129984) S 1 7 7 0 -1 4194304 8 0 0 0 1 2 0 0 20 0 1 0 12 4194304 300 18446744073709551615\n": false,
	} {
		if got := isKernel(parseStat([]byte(line))); got != want {
			t.Errorf("%q: %t, want %t", line, got, want)
		}
	}
	if Comm(2) == "kthreadd" && !Kernel(2) {
		t.Error("kthreadd is not the kernel's")
	}
}

// Children of any thread are the process's, those of children are not.
func TestChildren(t *testing.T) {
	if got := Children(os.Getpid()); len(got) != 0 {
		t.Fatalf("children %v before any began", got)
	}
	var want []int
	for range 3 {
		pid := make(chan int)
		release := make(chan bool)
		defer close(release)
		go func() {
			runtime.LockOSThread()
			pid <- sleeper(t, "child").Process.Pid
			<-release
		}()
		want = append(want, <-pid)
	}
	shell := exec.Command("sh", "-c", "sleep 100 & echo up; wait")
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer shell.Wait()
	defer syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
	if _, err := io.ReadFull(out, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	want = append(want, shell.Process.Pid)
	slices.Sort(want)
	if got := Children(os.Getpid()); !slices.Equal(got, want) {
		t.Errorf("children %v, want %v", got, want)
	}
	if got := scannedChildren(os.Getpid()); !slices.Equal(got, want) {
		t.Errorf("children by a scan %v, want %v", got, want)
	}
	if got, err := listedChildren(os.Getpid()); err == nil {
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("children by the kernel's list %v, want %v", got, want)
		}
	}
	eventually(t, "the shell's only child, sleep", func() bool { // a shell until its image is replaced
		got := Children(shell.Process.Pid)
		return len(got) == 1 && Comm(got[0]) == "sleep"
	})
	if got := Children(1 << 30); got != nil {
		t.Errorf("children of no process: %v", got)
	}
	if all := All(); !slices.IsSorted(all) || !slices.Contains(all, os.Getpid()) || !slices.Contains(all, want[0]) {
		t.Errorf("all processes: %v", all)
	}
}

// A process whose first thread has ended lives on, and is seen by another.
func TestFirstThreadEnded(t *testing.T) {
	dir := t.TempDir()
	exe := filepath.Join(dir, "leaderless")
	if text, err := exec.Command("gcc", "-O1", "../../../symbolize/testdata/leaderless.c", "-o", exe, "-pthread").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cmd := exec.Command(exe)
	if _, err := cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	eventually(t, "the first thread to end", func() bool {
		b, err := os.ReadFile(dirOf(pid) + "/maps")
		return err != nil || len(b) == 0
	})
	began, err := StartTicks(pid)
	if err != nil || Ended(pid) || EndedSince(pid, began) {
		t.Error("it has ended", err)
	}
	var own *Mapping
	for m, err := range Mappings(pid) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Path == exe {
			own = &m
		}
	}
	if own == nil {
		t.Fatal("its mappings are not seen")
	}
	f, err := OpenMapped(pid, own)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := OpenMemory(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	inMemory, inFile := make([]byte, 16), make([]byte, 16)
	if _, err := mem.ReadAt(inMemory, int64(own.Start)); err != nil {
		t.Error(err)
	}
	if _, err := f.ReadAt(inFile, int64(own.Offset)); err != nil || !bytes.Equal(inMemory, inFile) {
		t.Errorf("%v: %x in memory, %x in the file", err, inMemory, inFile)
	}
	root, err := OpenRoot(pid)
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	cmd.Process.Kill()
	eventually(t, "it to end", func() bool { return Ended(pid) })
}

// BenchmarkEnded looks at a process that lives, as is done for those whose end may have
// gone unseen.
func BenchmarkEnded(b *testing.B) {
	pid := os.Getppid()
	began, err := StartTicks(pid)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if EndedSince(pid, began) {
			b.Fatal("it has ended")
		}
	}
}
