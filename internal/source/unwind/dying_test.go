package unwind

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// What goes wrong with a file of a process that has ended is not the file's
// fault; of one that lives it is.
func TestErrorsOfAProcessThatHasEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]bool{cmd.Process.Pid: true, os.Getpid(): false} {
		d := (&Unwinder{}).newAnalysis(pid)
		if got := errors.Is(d.explain(unix.ESRCH), os.ErrNotExist); got != want {
			t.Errorf("process %d: os.ErrNotExist %v, want %v", pid, got, want)
		}
		if d.explain(nil) != nil {
			t.Error("an error out of nothing")
		}
	}
}
