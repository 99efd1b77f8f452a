package unwind

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// captureLate traces the calls of code that comes after the analysis: a plugin's that
// is loaded, or without one what the program makes.
func captureLate(t *testing.T, calls uint64, plugin ...string) *capture {
	t.Helper()
	prog := buildProgram(t, "gcc", "late", "-O2", "-fomit-frame-pointer", "testdata/late.c", "-ldl")
	p := startTarget(t, prog, plugin...)
	c := newCapture(t, Options{}, p.pid)
	c.attach(buildLibrary(t), symbol, 1)
	p.run()
	c.detach(calls)
	return c
}

// captureUnknown starts a traced process that nobody has analysed.
func captureUnknown(t *testing.T, calls string) (*capture, *target) {
	t.Helper()
	p := startTarget(t, buildCalls(t), calls)
	c := newCapture(t, Options{})
	c.attach(buildLibrary(t), symbol, 1)
	if err := c.base.Maps["targets"].Put(uint32(p.pid), make([]byte, c.base.Maps["targets"].ValueSize())); err != nil {
		t.Fatal(err)
	}
	return c, p
}

func buildPlugin(t *testing.T) string {
	buildLibrary(t)
	return build(t, "gcc", "plugin.so", "-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "testdata/plugin.c", "-L"+workDir(t), "-lalloc", "-Wl,-rpath,$ORIGIN")
}

// A library's first call, right after it was loaded, has its whole stack.
func TestLoadedLibrary(t *testing.T) {
	c := captureLate(t, 1, buildPlugin(t))
	if s := c.stats(); s.Copied != 1 || s.Incomplete != 0 {
		t.Error("want one copied stack, and that complete")
	}
	c.want(1, []string{"plugin_inner", "plugin_allocate", "calls", "main", "...", "_start"})
}

// So has one on a stack that is deep, or has pages that nobody has touched yet.
func TestLoadedLibraryDeep(t *testing.T) {
	plugin := buildPlugin(t)
	for _, written := range []string{"0", "1"} {
		for _, room := range []int{24 << 10, 100 << 10, 200 << 10} {
			t.Run(fmt.Sprintf("%d bytes, written %s", room, written), func(t *testing.T) {
				c := captureLate(t, 1, plugin, strconv.Itoa(room), written)
				if s := c.stats(); s.Copied != 1 || s.Incomplete != 0 {
					t.Error("want one copied stack, and that complete")
				}
				c.want(1, []string{"plugin_inner", "plugin_allocate", "calls", "deep", "thread", "..."})
			})
		}
	}
}

// One that is deeper than what is copied says so, and has its inner frames.
func TestLoadedLibraryTooDeep(t *testing.T) {
	c := captureLate(t, 1, buildPlugin(t), strconv.Itoa(1<<20), "1")
	for id := range c.counts {
		s, names := c.stacks[id], c.names(id)
		if !errors.Is(s.Err, errNotCopied) || !match([]string{"plugin_inner", "plugin_allocate", "calls", "deep"}, names) {
			t.Errorf("%v, %v", s.Err, names)
		}
	}
}

// A process that nobody has analysed has whole stacks as well.
func TestUnknownProcess(t *testing.T) {
	c, p := captureUnknown(t, "3")
	p.run()
	c.detach(4)
	if s := c.stats(); s.Copied == 0 || s.UnknownProcess != 0 {
		t.Error("want copied stacks only")
	}
	if !c.u.kernel.known(uint32(p.pid)) {
		t.Error("the process was not analysed")
	}
	c.want(3, []string{"leaf", "...", "middle", "main", "...", "_start"})
}

// A user's copies leave room for those of others.
func TestCopiesShare(t *testing.T) {
	c, p := captureUnknown(t, "400")
	holdAnalyses(c) // an analysis that takes long
	p.run()
	// User space takes maxCopies out before it waits for the analysis. The others have half
	// of the room, 16 MiB for copies of 74 KB.
	if s, err := c.u.Stats(); err != nil || s.NotCopied == 0 || s.Copied > maxCopies+16<<20/74_000/2 {
		t.Errorf("%d copies of one user, %d found no room: %v", s.Copied, s.NotCopied, err)
	}
	c.u.analyse.Release(1)
	c.detach(401)
}

// A process that has ended when its copy is looked at has the frames that can be
// known.
func TestEndedBeforeCopy(t *testing.T) {
	c, p := captureUnknown(t, "1")
	holdAnalyses(c) // an analysis that takes long
	p.run()
	p.end()
	time.Sleep(50 * time.Millisecond)
	c.u.analyse.Release(1)
	c.detach(2)
	for id := range c.counts {
		if s := c.stacks[id]; len(s.Frames) == 0 || s.Err == nil {
			t.Errorf("stack %x: %+v", id, s)
		}
	}
}

// The frame pointer leads out of code that a program made.
func TestGeneratedCode(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the code is x86-64's")
	}
	c := captureLate(t, 10)
	if s := c.stats(); s.Incomplete+s.Copied != 0 || s.MemoHits != 9 {
		t.Error("want 9 memo hits and no incomplete stack")
	}
	for id := range c.counts {
		guessed := 0
		for _, f := range c.stacks[id].Frames {
			if f.Guessed {
				guessed++
			}
		}
		if guessed != 1 {
			t.Errorf("%d frames are marked: %+v", guessed, c.stacks[id].Frames)
		}
	}
	c.want(10, []string{"helper", "...", "calls", "main", "...", "_start"})
}

func holdAnalyses(c *capture) {
	c.t.Helper()
	if err := c.u.analyse.Acquire(context.Background(), 1); err != nil {
		c.t.Fatal(err)
	}
}
