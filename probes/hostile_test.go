package probes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		libs, err := findLibraries(hostile.pid(), []Level{Driver})
		if err != nil {
			t.Fatal(err)
		}
		for _, lib := range libs {
			a, err := attach(lib, tr.progs, 0, lasting)
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
	if attached < 10 {
		t.Errorf("attached %d times: the process was not hostile enough", attached)
	}
}
