package session_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/torchtest"
)

// A pyTorch is a Python script that has Debian's PyTorch and the stand-in's libcuda and libc10.
type pyTorch struct {
	*testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startPyTorch starts a script. It gets the paths of the two libraries, and ends when its input does.
func startPyTorch(t *testing.T, script string) *pyTorch {
	t.Helper()
	torchtest.Need(t)
	kit := testcuda.Get(t)
	cmd := exec.CommandContext(t.Context(), torchtest.Python, script, kit.LibCUDA, filepath.Join(kit.Dir, "libc10.so"))
	cmd.Stderr = os.Stderr
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
		in.Close()
		cmd.Wait()
	})
	return &pyTorch{t, cmd, in, bufio.NewScanner(out)}
}

// hear waits for a line of the script.
func (p *pyTorch) hear() {
	p.Helper()
	if !p.out.Scan() {
		p.Fatal("the script ended: ", p.out.Err())
	}
}
