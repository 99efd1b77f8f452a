package probes

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// A program is a process that testcuda cannot start: one of its own sources,
// namespace, root or environment. It answers each line with one or more.
type program struct {
	testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// spawn starts cmd and waits until it says first.
func spawn(tb testing.TB, cmd *exec.Cmd, first string) *program {
	tb.Helper()
	needTracing(tb)
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p := &program{tb, cmd, in, bufio.NewScanner(out)}
	tb.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if first != "" {
		p.expect(first)
	}
	return p
}

// workload starts a scripted workload that attr puts elsewhere.
func workload(tb testing.TB, attr *syscall.SysProcAttr, path string, libs ...string) *program {
	tb.Helper()
	cmd := exec.Command(path)
	cmd.SysProcAttr = attr
	cmd.Env = []string{"LD_LIBRARY_PATH=" + strings.Join(libs, ":")}
	p := spawn(tb, cmd, "")
	p.do("echo up", "up")
	return p
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) do(command, answer string) {
	p.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.Fatal(err)
	}
	p.expect(answer)
}

func (p *program) expect(want string) {
	p.Helper()
	for p.out.Scan() {
		if p.out.Text() == want {
			return
		}
	}
	p.Fatalf("it ended without saying %q", want)
}

// odd builds and starts the program of testdata/odd.c.
func odd(t *testing.T) *program { return withOdd(t, "oddmain.c") }

// withOdd builds and starts a program that has testdata/odd.c for its libcuda.
func withOdd(t *testing.T, source string) *program {
	t.Helper()
	dir := open2all(t)
	lib := filepath.Join(dir, "libcuda.so.1")
	compile(t, lib, "odd.c", "-fPIC", "-shared", "-fvisibility=default", "-Wl,-soname,libcuda.so.1")
	compile(t, filepath.Join(dir, "odd"), source, lib, "-Wl,-rpath,$ORIGIN")
	return spawn(t, exec.Command(filepath.Join(dir, "odd")), "up")
}

// copyKit copies the stand-in, and what its workload needs to start, under
// root, and returns the workload's path there.
func copyKit(t *testing.T, root string) string {
	t.Helper()
	kit := testcuda.Get(t)
	copyFile := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{string(testcuda.Workload), "libcuda.so.1", "libtestrm.so", "libcudart.so.13"} {
		copyFile(filepath.Join(kit.Dir, name), filepath.Join(root, name))
	}
	needs, err := exec.Command("ldd", kit.Path(testcuda.Workload)).Output()
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(needs)) {
		if strings.HasPrefix(word, "/") && !strings.HasPrefix(word, kit.Dir) {
			copyFile(word, filepath.Join(root, word))
		}
	}
	return filepath.Join(root, string(testcuda.Workload))
}
