package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

const recordings = "../../test/recordings/"

// A screen is of a terminal that tmux makes, in which the program runs.
type screen struct {
	*testing.T
	socket string
}

// inTerminal starts the program in a terminal.
func inTerminal(t *testing.T, columns, lines int, environment []string, args ...string) *screen {
	t.Helper()
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		t.Fatalf("%v: make test installs it", err)
	}
	x := &screen{T: t, socket: filepath.Join(t.TempDir(), "tmux")}
	quoted := []string{binary, "top"}
	for _, a := range args {
		quoted = append(quoted, "'"+a+"'")
	}
	// What it leaves behind, and its exit code, stay on the screen.
	line := strings.Join(environment, " ") + " " + strings.Join(quoted, " ") + "; echo \"exit code $?\"; exec sleep 60"
	cmd := exec.Command(tmux, "-f", "/dev/null", "-S", x.socket, "new-session", "-d", "-x", strconv.Itoa(columns), "-y", strconv.Itoa(lines), line)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TERM=xterm-256color")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("start tmux: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command(tmux, "-S", x.socket, "kill-server").Run() })
	return x
}

func (x *screen) tmux(args ...string) string {
	x.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", x.socket}, args...)...).CombinedOutput()
	if err != nil {
		x.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

func (x *screen) press(keys ...string) { x.tmux(append([]string{"send-keys"}, keys...)...) }

// until waits until the screen is as it should be, and returns it.
func (x *screen) until(what string, is func(seen string) bool) (seen string) {
	x.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if seen = x.tmux("capture-pane", "-p"); is(seen) {
			return seen
		}
		if time.Now().After(end) {
			x.Fatalf("waited five minutes for %s on the screen:\n%s", what, seen)
		}
	}
}

// shows waits until every text is on the screen, and returns that.
func (x *screen) shows(texts ...string) (seen string) {
	x.Helper()
	return x.until(strings.Join(texts, ", "), func(seen string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(seen, text) })
	})
}

// lacks waits until a text is not on the screen.
func (x *screen) lacks(text string) {
	x.Helper()
	x.until("no "+text, func(seen string) bool { return !strings.Contains(seen, text) })
}

// training starts a stand-in training job that goes on.
func training(t *testing.T) *testcuda.Process {
	t.Helper()
	return workload(t, testcuda.Train, testcuda.Options{Args: []string{"-steps", "0", "-interval", "20"}})
}

// The view of a live trace in a terminal: keys, a mouse, a narrow and a wide screen, and
// nothing of it left at its end.
func TestTopInTerminal(t *testing.T) {
	needTracing(t)
	p := training(t)
	x := inTerminal(t, 80, 24, nil, "-p", pid(p), "--stacks", "fp", "--interval", "200ms")
	seen := x.shows("live", "train", "tensor_empty", "own cost", "q quit")
	for l := range strings.SplitSeq(seen, "\n") {
		if n := len([]rune(l)); n > 80 {
			t.Errorf("%d columns: %q", n, l)
		}
	}
	x.tmux("resize-window", "-x", "200", "-y", "50")
	x.shows("ALLOCATED", "cuMemAlloc_v2", "Space pause")
	x.press("/", "log_metrics", "Enter")
	x.shows("filter: log_metrics", "< log_metrics") // there is a row by now
	x.press("Tab", "Tab", "Enter")
	x.shows("› stack", "FRAME", "train_step", "live allocations as of", "2097152")
	x.press("Escape")
	x.lacks("› stack") // a key that comes with Escape at once would be another
	x.press("Escape")
	x.lacks("filter:")
	x.press("Space")
	x.shows("paused")
	x.press("?")
	x.shows("KEYS", "Shift-Tab")
	x.press("x", "Space")
	x.shows("live")
	// A click on the row of the process chooses and opens it: button, column, line.
	seen = x.shows("HOLDS")
	for y, l := range strings.Split(seen, "\n") {
		if strings.HasPrefix(strings.TrimSpace(l), pid(p)+" ") {
			for range 2 {
				x.press("-l", "\x1b[<0;5;"+strconv.Itoa(y+1)+"M")
				x.press("-l", "\x1b[<0;5;"+strconv.Itoa(y+1)+"m")
				time.Sleep(100 * time.Millisecond)
			}
		}
	}
	x.shows("› process train (" + pid(p) + ")")
	x.press("q")
	if seen = x.shows("exit code 0"); strings.Contains(seen, "HOLDS") || strings.Contains(seen, "\x1b") {
		t.Errorf("it leaves on the screen:\n%s", seen)
	}
}

// Colours are for terminals, and not for those whose user wants none.
func TestTopColors(t *testing.T) {
	color := regexp.MustCompile(`\x1b\[[0-9;]*3[0-7](;[0-9]+)*m`)
	for env, want := range map[string]bool{"NO_COLOR=": true, "NO_COLOR=yes": false} {
		x := inTerminal(t, 100, 30, []string{env}, mustAbs(t, recordings+"torch_native.gmt"))
		x.shows("12.09s")
		if got := color.MatchString(x.tmux("capture-pane", "-p", "-e")); got != want {
			t.Errorf("with %s there are colours: %t, want %t", env, got, want)
		}
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A recording in a terminal: back in time, and on.
func TestTopOfRecordingInTerminal(t *testing.T) {
	x := inTerminal(t, 90, 24, nil, mustAbs(t, recordings+"nccl.gmt"), "--at", "8s")
	x.shows("8.00s", "recording", "as nvidia-smi says")
	x.press("Home")
	x.shows("0.00s", "holds 0 B")
	x.press("End")
	x.shows("10.67s ▕")
	x.press("Left")
	x.shows("10.57s ▕")
	// Ended from elsewhere, it leaves the screen as it was.
	shell, err := strconv.Atoi(strings.TrimSpace(x.tmux("list-panes", "-F", "#{pane_pid}")))
	if err != nil {
		t.Fatal(err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", shell, shell))
	if err != nil {
		t.Fatal(err)
	}
	program, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(program, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if seen := x.shows("exit code 0"); strings.Contains(seen, "HOLDS") {
		t.Errorf("it leaves on the screen:\n%s", seen)
	}
}

// A command that is traced from its start has the screen again when the view is over, and
// its exit code is ours.
func TestTopOfCommand(t *testing.T) {
	needTracing(t)
	kit := testcuda.Get(t)
	// The view shows the command line, which must not have what the command writes.
	script := "echo out of the com\\mand; " + kit.Path(testcuda.Train) + " -steps 40 -interval 20; echo at its end; exit 7"
	x := inTerminal(t, 160, 40, kit.Env(testcuda.LibsDefault), "--stacks", "fp", "--interval", "200ms", "--", "sh", "-c", script)
	seen := x.shows("live", "log_metrics")
	if strings.Contains(seen, "out of the command") {
		t.Errorf("the command writes into the view:\n%s", seen)
	}
	x.press("q")
	x.shows("out of the command", "at its end", "exit code 7")
}

type document = livetest.Document[live.Now]

func TestTopOnce(t *testing.T) {
	needTracing(t)
	p := training(t)
	// What a step holds for a while is growth, too, where it is there at the end alone.
	leaks := func(d document) bool {
		return len(d.Now.Growing) != 0 && (strings.Contains(d.Now.Growing[0].Text, "log_metrics") || strings.Contains(d.Now.Growing[0].Text, "cache_put"))
	}
	var d document
	var v *invocation
	for try := 0; try == 0 || try < 20 && !leaks(d); try++ {
		v = command(t, "top", "-p", pid(p), "--stacks", "fp", "--once", "--json", "--interval", "500ms", "-n", "3").start().ends(exitDone)
		d = livetest.Read[live.Now](t, v.stdout.String())
	}
	if len(d.Processes) != 1 || d.Processes[0].PID != p.PID() || d.Processes[0].Inuse <= 0 || d.Now.Processes[0].Rate <= 0 || d.Now.Total.Grown <= 0 ||
		len(d.Now.Stacks) != 3 || d.Now.StacksLeftOut <= 0 || d.Now.Cost == nil || d.Now.Cost.CPU <= 0 || d.Now.Interval < 500*time.Millisecond {
		t.Errorf("it says:\n%s", v.stdout.String())
	}
	if !leaks(d) {
		t.Errorf("growing: %+v", d.Now.Growing)
	}

	v = command(t, "top", "-p", pid(p), "--stacks", "fp", "--once", "--interval", "500ms").start().ends(exitDone)
	for _, want := range []string{"GPU memory of pid " + pid(p), "Processes", "tensor_empty train.c", "Stacks that grew most in"} {
		if !strings.Contains(v.stdout.String(), want) {
			t.Errorf("%q is not in:\n%s", want, v.stdout.String())
		}
	}
	if strings.Contains(v.stdout.String(), "\x1b") {
		t.Error("it has colours for no terminal")
	}

	// One document an interval, until the target ends.
	v = command(t, "top", "-p", pid(p), "--stacks", "fp", "--json", "--interval", "200ms").start()
	v.until("three documents came", func() bool { return strings.Count(v.stdout.String(), "\n") >= 3 })
	if err := p.Close(); err != nil {
		t.Log(err) // it was ended in its middle
	}
	v.ends(exitDone)
	lines := strings.Split(strings.TrimSpace(v.stdout.String()), "\n")
	for i, l := range lines {
		if ended := livetest.Read[live.Now](t, l).Now.Ended != ""; ended != (i == len(lines)-1) {
			t.Errorf("document %d of %d says that the trace ended: %t", i, len(lines), ended)
		}
	}
}

func TestTopUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "nothing to trace",
		"-a":                              "top needs a terminal",
		"-a --once --at 5s":               "--at is for a recording",
		"-a -p 1 --once":                  "give only one",
		"-a --once --interval 1ms":        "at least 100ms",
		recordings + "nccl.gmt -a":        "top needs a terminal",
		recordings + "nccl.gmt x":         "one recording",
		recordings + "nccl.gmt -a --once": "a recording cannot be combined with -p, -a or --record",
	} {
		command(t, append([]string{"top"}, strings.Fields(args)...)...).start().ends(exitUsage).says(want)
	}
	nccl := mustAbs(t, recordings+"nccl.gmt")
	command(t, "top", nccl, "--once", "--at", "5h").start().ends(exitFailed).says("does not have that moment", "10.6")
	command(t, "top", "/dev/null", "--once").start().ends(exitFailed).says("/dev/null")
	v := command(t, "top", nccl, "--once", "--at", "8s").start().ends(exitDone)
	if !strings.Contains(v.stdout.String(), "python3, as nvidia-smi says") {
		t.Errorf("it says:\n%s", v.stdout.String())
	}
}
