package probes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A process whose first thread alone has ended can be traced, unlike one that
// is gone or was only not waited for yet.
func TestCheckTargetFirstThreadEnded(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "leaderless")
	if text, err := exec.Command("gcc", "-O1", "../symbolize/testdata/leaderless.c", "-o", exe, "-pthread").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cmd := exec.Command(exe)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	wait := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited five minutes for %s", what)
			}
		}
	}
	wait("the first thread to end", func() bool {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err != nil
	})
	if err := CheckTarget(pid); err != nil {
		t.Error(err)
	}
	cmd.Process.Kill()
	wait("its end", func() bool { return proc.Ended(pid) })
	if err := CheckTarget(pid); err == nil || !strings.Contains(err.Error(), "it has exited") {
		t.Errorf("before it was waited for: %v", err)
	}
	cmd.Wait()
	if err := CheckTarget(pid); err == nil || !strings.Contains(err.Error(), "no such process") {
		t.Errorf("after: %v", err)
	}
}

// A process of a container is found by the number that it has there.
func TestNumbered(t *testing.T) {
	c := exec.Command("sleep", "60")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Process.Kill()
		c.Wait()
	}()
	if want := fmt.Sprintf("%d (sleep)", c.Process.Pid); !slices.Contains(numbered(1), want) {
		t.Errorf("%q are 1 in a container, %s is missing", numbered(1), want)
	}
}
