package symbolize

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

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// need returns the path of a tool; without it the test fails in CI and is
// skipped elsewhere.
func need(t testing.TB, tool string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is needed: %v", tool, err)
		}
		t.Skipf("%s is needed: %v", tool, err)
	}
	return path
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(need(t, name), args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A target is a running program that printed addresses in itself.
type target struct {
	pid  uint32
	path string
	at   map[string]uint64
	in   io.Closer
	cmd  *exec.Cmd
}

// start runs a program that prints "name address" lines, of which main's is
// the last, and then waits for its input to end.
func start(t testing.TB, path string, args ...string) *target {
	t.Helper()
	return run(t, exec.Command(path, args...))
}

// startIn does so with another root directory.
func startIn(t testing.TB, root, path string) *target {
	t.Helper()
	return run(t, &exec.Cmd{Path: path, Args: []string{path}, Dir: "/", SysProcAttr: &syscall.SysProcAttr{Chroot: root}})
}

func run(t testing.TB, cmd *exec.Cmd) *target {
	t.Helper()
	path := cmd.Path
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	tg := &target{pid: uint32(cmd.Process.Pid), path: path, at: make(map[string]uint64), in: in, cmd: cmd}
	t.Cleanup(func() { tg.stop() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var name string
		var addr uint64
		if _, err := fmt.Sscanf(lines.Text(), "%s %x", &name, &addr); err != nil {
			t.Fatalf("%s printed %q: %v", path, lines.Text(), err)
		}
		tg.at[name] = addr
		if name == "main" {
			break
		}
	}
	if len(tg.at) == 0 {
		t.Fatalf("%s printed nothing", path)
	}
	return tg
}

// stop ends the program and waits for it.
func (tg *target) stop() {
	if tg.in != nil {
		tg.in.Close()
		tg.cmd.Wait()
		tg.in = nil
	}
}

func newSymbolizer(t testing.TB, cfg Config) *Symbolizer {
	t.Helper()
	if cfg.debugDirs == nil {
		cfg.debugDirs = []string{t.TempDir()}
	}
	s := New(cfg)
	t.Cleanup(s.Close)
	return s
}

// names shows a location's functions, innermost first, and its reason.
func names(l *snapshot.Location) string {
	var out []string
	for _, line := range l.Lines {
		s := line.Function
		if line.Reason != "" {
			s += " (" + line.Reason + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, " < ")
}

// sources shows a location's lines as "file:line", innermost first.
func sources(l *snapshot.Location) string {
	var out []string
	for _, line := range l.Lines {
		out = append(out, fmt.Sprintf("%s:%d", filepath.Base(line.File), line.Line))
	}
	return strings.Join(out, " < ")
}

func reasonCount(t testing.TB, s *Symbolizer, name string) uint64 {
	t.Helper()
	for _, c := range s.Loss() {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("there is no counter %s", name)
	return 0
}

// lineOf returns the number of the line of a test source that ends so.
func lineOf(t testing.TB, file, end string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range strings.Split(string(b), "\n") {
		if strings.HasSuffix(l, end) {
			return i + 1
		}
	}
	t.Fatalf("%s has no line that ends in %q", file, end)
	return 0
}
