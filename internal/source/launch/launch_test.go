package launch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A held command has its image and has run nothing.
// streams are this process's.
var streams = Streams{os.Stdin, os.Stdout, os.Stderr}

func TestHold(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	c, err := Hold([]string{"/bin/sh", "-c", "echo >" + mark + "; exit 7"}, streams)
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.PID()))
	if err != nil || !bytes.Contains(status, []byte("tracing stop")) {
		t.Errorf("not held: %v\n%s", err, status)
	}
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.PID()))
	if self, _ := os.Executable(); exe == self {
		t.Errorf("held before its image was replaced")
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("ran while held")
	}
	// The dynamic linker has run, and the breakpoint is gone.
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.PID()))
	if !bytes.Contains(maps, []byte("/libc.so")) {
		t.Errorf("libc is not mapped yet:\n%s", maps)
	}
	if entry, err := proc.EntryPoint(c.PID()); err != nil {
		t.Error(err)
	} else if mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", c.PID())); err != nil {
		t.Error(err)
	} else {
		code := make([]byte, len(breakpoint))
		if _, err := mem.ReadAt(code, int64(entry)); err != nil || bytes.Equal(code, breakpoint) {
			t.Errorf("code at the entry point: %x, %v", code, err)
		}
		mem.Close()
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	code, err := c.Wait()
	if code != 7 || err != nil {
		t.Errorf("exit code %d, %v; want 7", code, err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error("did not run once released")
	}
}

// build compiles a program, or a library, in dir.
func build(t *testing.T, dir, out, source string, flags ...string) string {
	t.Helper()
	out = filepath.Join(dir, out)
	gcc := exec.Command("gcc", append(flags, "-o", out, "-x", "c", "-")...)
	gcc.Stdin = strings.NewReader(source)
	if text, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

// What runs before the program's entry point may have traps of its own, and may run
// another program in its place: that one is held, and nothing of it is changed.
func TestHoldWithConstructor(t *testing.T) {
	dir := t.TempDir()
	program := build(t, dir, "program", "int main(void) { return 5; }")
	t.Setenv("LD_PRELOAD", build(t, dir, "libfirst.so", `
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int trapped;
static void trap(int signal) { trapped = signal; }
__attribute__((constructor)) static void first(void)
{
	signal(SIGTRAP, trap);
	raise(SIGTRAP);
	if (!trapped)
		_exit(1);
	if (!getenv("AGAIN")) {
		setenv("AGAIN", "1", 1);
		execl("/proc/self/exe", "again", (char *)0);
	}
}`, "-shared", "-fPIC"))
	c, err := Hold([]string{program}, streams)
	if err != nil {
		t.Fatal(err)
	}
	if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.PID())); err != nil || string(args) != "again\x00" {
		t.Errorf("held as %q, %v", args, err)
	}
	c.Release()
	if code, err := c.Wait(); code != 5 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// A static program has no dynamic linker; one whose libraries are missing ends
// before its entry point.
func TestHoldOddPrograms(t *testing.T) {
	dir := t.TempDir()
	build := func(out string, flags ...string) string {
		return build(t, dir, out, "int main(void) { return 5; }", flags...)
	}
	c, err := Hold([]string{build("static", "-static")}, streams)
	if err != nil {
		t.Fatal(err)
	}
	c.Release()
	if code, err := c.Wait(); code != 5 || err != nil {
		t.Errorf("static: exit code %d, %v", code, err)
	}
	build("libgone.so", "-shared", "-fPIC", "-Wl,-soname,libgone.so")
	broken := build("broken", "-Wl,--no-as-needed", "-L"+dir, "-lgone")
	if err := os.Remove(filepath.Join(dir, "libgone.so")); err != nil {
		t.Fatal(err)
	}
	if _, err := Hold([]string{broken}, streams); err == nil || !strings.Contains(err.Error(), "ended before") {
		t.Errorf("missing library: %v", err)
	}
}

func TestSignalledExit(t *testing.T) {
	c, err := Hold([]string{"/bin/sh", "-c", "kill -TERM $$"}, streams)
	if err != nil {
		t.Fatal(err)
	}
	c.Release()
	if code, err := c.Wait(); code != 128+15 || err != nil {
		t.Errorf("exit code %d, %v; want 143", code, err)
	}
}

func TestNoSuchCommand(t *testing.T) {
	_, err := Hold([]string{"/no/such/command"}, streams)
	if err == nil || !strings.Contains(err.Error(), "/no/such/command") {
		t.Errorf("got %v", err)
	}
}

func TestKillHeld(t *testing.T) {
	c, err := Hold([]string{"/bin/sleep", "1000"}, streams)
	if err != nil {
		t.Fatal(err)
	}
	c.Kill()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", c.PID())); err == nil {
		t.Error("still there")
	}
}
