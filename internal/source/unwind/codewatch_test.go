package unwind

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// ask has a target of frees.py do something, and returns what it says.
func (p *target) ask(what string, arg any) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, what, arg); err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(p.expect("done"), "done"))
}

// free has it free code objects, n times all that there are ways, and returns where
// they were.
func (p *target) free(how string, n int) (at []uint64) {
	p.t.Helper()
	for field := range strings.FieldsSeq(p.ask(how, n)) {
		a, err := strconv.ParseUint(field, 0, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		at = append(at, a)
	}
	if len(at) != 5*n {
		p.t.Fatalf("%d addresses", len(at))
	}
	return at
}

func startFrees(t testing.TB, python string) *target {
	buildLibrary(t)
	return startTarget(t, python, "testdata/frees.py")
}

// cells returns the map unwind_codes.
func (c *capture) cells() []byte {
	c.t.Helper()
	b, err := c.u.kernel.maps["unwind_codes"].LookupBytes(uint32(0))
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

// cellIndex is where the cell of a code object is.
func cellIndex(pid int, code uint64) uint64 {
	const cells = 1 << 20 // UW_CELLS
	return mix(uint64(pid), code) % cells
}

// cellIn is the cell of a code object.
func cellIn(cells []byte, pid int, code uint64) uint32 {
	return binary.NativeEndian.Uint32(cells[4*cellIndex(pid, code):])
}

// eventually waits for something that happens within a few rounds of the watch.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for range 100 {
		if is() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("not so within 5 s: %s", what)
}

func (c *capture) pythonProcess(pid int) (p pythonProcess) {
	c.u.codes.mu.Lock()
	defer c.u.codes.mu.Unlock()
	if found := c.u.codes.processes[pid]; found != nil {
		p = *found
	}
	return p
}

// watch has a target's code objects watched, which takes a stack of it.
func (c *capture) watch(p *target) {
	c.t.Helper()
	for range 100 {
		p.ask("call", 1) // the first ones of a new image may find it unknown
		if c.pythonProcess(p.pid).state == codeWatched {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	known, ok := c.u.known.get(p.pid)
	c.t.Fatalf("not watched: %+v, %v, %+v, %q", known, ok, c.pythonProcess(p.pid), c.u.codes.notes())
}

// watched tells whether a stack of a process is taken by the cells of its code objects.
func (c *capture) watched(p *target) bool {
	c.t.Helper()
	spec, err := bpf.LoadUnwind()
	if err != nil {
		c.t.Fatal(err)
	}
	// each calls f with the slots that the process's stacks were in.
	each := func(f func(slot uint32, b []byte, field func(name string) uint32)) {
		for slot := range slots() {
			b, err := c.u.kernel.maps["unwinds"].LookupBytes(slot)
			if err != nil {
				c.t.Fatal(err)
			}
			field := func(name string) uint32 {
				at, err := offset(spec.Types, "unwind", name)
				if err != nil {
					c.t.Fatal(err)
				}
				return binary.NativeEndian.Uint32(b[at:])
			}
			if field("key.pid") == uint32(p.pid) {
				f(slot, b, field)
			}
		}
	}
	each(func(slot uint32, b []byte, _ func(string) uint32) {
		clear(b)
		if err := c.u.kernel.maps["unwinds"].Put(slot, b); err != nil {
			c.t.Fatal(err)
		}
	})
	p.ask("call", 1)
	watched, found := false, 0
	each(func(_ uint32, _ []byte, field func(string) uint32) {
		watched = watched || field("py_cells") != 0
		found++
	})
	if found == 0 {
		c.t.Fatal("no slot has a stack of the process")
	}
	return watched
}

// wantMoved fails unless the cells of all addresses counted up.
func wantMoved(t testing.TB, before, after []byte, pid int, at []uint64) {
	t.Helper()
	times := map[uint64]uint32{} // by cell
	for _, a := range at {
		times[mix(uint64(pid), a)&0xffff]++
	}
	for _, a := range at {
		if moved := cellIn(after, pid, a) - cellIn(before, pid, a); moved < times[cellIndex(pid, a)] {
			t.Errorf("cell of %#x counted %d of %d", a, moved, times[mix(uint64(pid), a)&0xffff])
		}
	}
}

// Each code object that a watched process frees is counted in its cell, in whichever
// way and by whichever thread it is freed; those of another process that runs the same
// file are not, and that process has no breakpoint.
func TestCodeFreed(t *testing.T) {
	pythons := installedPythons()
	if len(pythons) == 0 {
		skip(t, "no Python")
	}
	for _, python := range pythons {
		t.Run(python, func(t *testing.T) {
			p, other := startFrees(t, python), startFrees(t, python)
			c := newCapture(t, Options{}, p.pid, other.pid)
			c.attach(buildLibrary(t), symbol, 1)
			if c.watched(p) {
				t.Error("watched before its probe is on")
			}
			c.watch(p)
			if !c.watched(p) {
				t.Error("not watched with its probe on")
			}
			const times = 20
			for _, how := range []string{"free", "thread"} {
				known, _ := c.u.known.get(p.pid)
				before := c.cells()
				at := p.free(how, times)
				wantMoved(t, before, c.cells(), p.pid, at)
				if after, _ := c.u.known.get(p.pid); after.Freed-known.Freed < uint32(len(at)) {
					t.Errorf("%d freed, want %d", after.Freed-known.Freed, len(at))
				}
			}
			before := c.cells()
			other.free("free", times)
			if !slices.Equal(before, c.cells()) {
				t.Error("the code objects of another process were counted")
			}
			for _, probe := range c.pythonProcess(p.pid).probes {
				if !probe.trapped(p.pid) {
					t.Error("no breakpoint")
				}
			}
			for _, probe := range probesOf(t, other.pid) {
				if probe.trapped(other.pid) {
					t.Error("a breakpoint in another process")
				}
			}
		})
	}
}

// probesOf returns where a process's probes would lie.
func probesOf(t testing.TB, pid int) []codeProbe {
	t.Helper()
	mappings, err := readMappings(pid)
	if err != nil {
		t.Fatal(err)
	}
	mappings = slices.DeleteFunc(mappings, func(m proc.Mapping) bool { return !ofPython(&m) })
	probes, err := codeProbes(pid, mappings)
	if err != nil || len(probes) == 0 {
		t.Fatalf("%v, %v", probes, err)
	}
	t.Cleanup(func() { closeProbes(probes) })
	return probes
}

// anyPython is one that has each version's ways of freeing.
func anyPython(t testing.TB) string {
	pythons := installedPythons()
	if len(pythons) == 0 {
		skip(t, "no Python")
	}
	return pythons[len(pythons)-1]
}

// A child has its parent's breakpoints, but is not watched for that, and does not count
// as its parent. Its own are put on like those of any other process.
func TestCodeFreedByChild(t *testing.T) {
	p := startFrees(t, anyPython(t))
	c := newCapture(t, Options{}, p.pid)
	c.attach(buildLibrary(t), symbol, 1)
	c.watch(p)
	before := c.cells()
	child, err := strconv.Atoi(p.ask("fork", 20))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(child, syscall.SIGKILL)
	eventually(t, "the child has stopped", func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return strings.Contains(string(stat), ") T ")
	})
	if !slices.Equal(before, c.cells()) {
		t.Error("the code objects of a child were counted")
	}
	if probe := c.pythonProcess(p.pid).probes[0]; probe.trapped(child) {
		t.Error("the child keeps the breakpoint that it met")
	}
	before = c.cells()
	at := p.free("free", 20)
	wantMoved(t, before, c.cells(), p.pid, at)
}

// A process that replaces its image is watched no longer, before anybody tells so, and
// anew once that was told. Its memo starts afresh: what counted its code objects until
// then did not see those of the other image.
func TestCodeFreedAfterExec(t *testing.T) {
	pythons := installedPythons()
	if len(pythons) == 0 {
		skip(t, "no Python")
	}
	p := startFrees(t, pythons[0])
	c := newCapture(t, Options{}, p.pid)
	c.attach(buildLibrary(t), symbol, 1)
	c.watch(p)
	first, _ := c.u.known.get(p.pid)
	for _, python := range []string{pythons[0], pythons[len(pythons)-1]} {
		if _, err := io.WriteString(p.in, "execute "+python+"\n"); err != nil {
			t.Fatal(err)
		}
		p.expect("ready")
		if python == pythons[0] && c.watched(p) {
			t.Error("watched as its former image was")
		}
		c.u.Ended(p.pid)
		c.u.Changed(p.pid, 0)
		eventually(t, "analysed anew", func() bool {
			known, ok := c.u.known.get(p.pid)
			return ok && known.Watched == 0 && c.pythonProcess(p.pid).pid != 0
		})
		c.watch(p)
		if !c.watched(p) {
			t.Errorf("%s is not watched", python)
		}
		before := c.cells()
		at := p.free("free", 20)
		wantMoved(t, before, c.cells(), p.pid, at)
		second, _ := c.u.known.get(p.pid)
		if second.Mappings <= first.Mappings {
			t.Errorf("generation %d of the mappings, after %d of those of another image", second.Mappings, first.Mappings)
		}
		first = second
	}
}

// The kernel knows a probe's memory by the process's first thread: with that gone it
// takes the breakpoint away.
func TestCodeFreedWithoutFirstThread(t *testing.T) {
	p := startFrees(t, anyPython(t))
	c := newCapture(t, Options{}, p.pid)
	c.attach(buildLibrary(t), symbol, 1)
	c.watch(p)
	if !c.watched(p) {
		t.Error("not watched")
	}
	if _, err := io.WriteString(p.in, "leave 0\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first thread has ended", func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
		return strings.Contains(string(stat), ") Z ")
	})
	if c.watched(p) {
		t.Error("watched")
	}
}

// A process that maps a second Python is watched in both.
func TestCodeFreedOfTwoPythons(t *testing.T) {
	p := startFrees(t, anyPython(t))
	mapped, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	var libraries []string
	for _, file := range pythonFiles(t) {
		if strings.Contains(file, ".so.") && !strings.Contains(string(mapped), file) {
			libraries = append(libraries, file)
		}
	}
	if len(libraries) == 0 {
		skip(t, "no second Python")
	}
	c := newCapture(t, Options{}, p.pid)
	c.attach(buildLibrary(t), symbol, 1)
	c.watch(p)
	one := len(c.pythonProcess(p.pid).links)
	for _, library := range libraries {
		p.ask("load", library)
	}
	c.u.Changed(p.pid, 0)
	eventually(t, "watched in all", func() bool {
		q := c.pythonProcess(p.pid)
		return q.state == codeWatched && len(q.links) == one+len(libraries)
	})
	if one != 1 {
		t.Errorf("%d probes at first", one)
	}
	before := c.cells()
	at := p.free("free", 20)
	wantMoved(t, before, c.cells(), p.pid, at)
}

// A process that frees code objects at a high rate is not watched any more, for good,
// and one that frees many at once is.
func TestCodeFreedTooOften(t *testing.T) {
	p := startFrees(t, anyPython(t))
	c := newCapture(t, Options{}, p.pid)
	c.attach(buildLibrary(t), symbol, 1)
	c.watch(p)
	p.ask("many", freesAtOnce/2)
	time.Sleep(2 * codeLook)
	if !c.watched(p) {
		t.Error("not watched after some were freed at once")
	}
	probe := c.pythonProcess(p.pid).probes[0]
	p.ask("many", 5*freesAtOnce)
	eventually(t, "not watched any more", func() bool { return c.pythonProcess(p.pid).state == codeNever })
	if c.watched(p) {
		t.Error("watched")
	}
	eventually(t, "the breakpoint is gone", func() bool { return !probe.trapped(p.pid) })
	c.u.Changed(p.pid, 0)
	time.Sleep(3 * codeLook)
	if state := c.pythonProcess(p.pid).state; state != codeNever {
		t.Errorf("state %d", state)
	}
	if notes := strings.Join(c.u.codes.notes(), "\n"); !strings.Contains(notes, "of 1 processes Python code objects are read for each stack: "+errCodeBusy.Error()) {
		t.Errorf("%q", notes)
	}
}

// freesPerSecond may be freed for ever, and freesAtOnce at once now and then.
func TestTooMany(t *testing.T) {
	begin := time.Now()
	for _, c := range []struct {
		name  string
		every time.Duration
		freed []uint32 // in each such time
		want  bool     // after the last
	}{
		{"steadily", time.Second, slices.Repeat([]uint32{freesPerSecond}, 1000), false},
		{"more", time.Second, slices.Repeat([]uint32{freesPerSecond + 100}, 1000), true},
		{"at once", time.Millisecond, []uint32{freesAtOnce}, false},
		{"more at once", time.Millisecond, []uint32{freesAtOnce + 100}, true},
		{"twice", time.Second, []uint32{freesAtOnce, freesAtOnce}, true},
		{"some lost", time.Second, []uint32{100, ^uint32(4)}, false},
		{"twice, long after", time.Second, []uint32{freesAtOnce, 0, 0, 0, freesAtOnce}, false},
	} {
		freed := ^uint32(0) - 10 // the count begins again at 0
		p, now, got := pythonProcess{looked: begin, freed: freed}, begin, false
		for i, n := range c.freed {
			now, freed = now.Add(c.every), freed+n
			if got = p.tooMany(freed, now); got && i < len(c.freed)-1 && !c.want {
				t.Errorf("%s: too many after %d rounds", c.name, i)
			}
		}
		if got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// The last tracer takes its breakpoints with it.
func TestCodeWatchLeavesNothing(t *testing.T) {
	before := kernelObjects(t)
	p := startFrees(t, anyPython(t))
	var probes []codeProbe
	t.Run("open", func(t *testing.T) {
		c := newCapture(t, Options{}, p.pid)
		c.attach(buildLibrary(t), symbol, 1)
		c.watch(p)
		probes = c.pythonProcess(p.pid).probes
		if len(probes) == 0 || !probes[0].trapped(p.pid) {
			t.Error("the test does not see the breakpoint")
		}
	})
	for _, probe := range probes {
		if probe.trapped(p.pid) {
			t.Error("a breakpoint is left behind")
		}
	}
	p.ask("many", 10)
	wantOnly(t, before)
}

// BenchmarkCodeFreed compares what it takes to make and free a code object, where it is
// watched and where it is not.
func BenchmarkCodeFreed(b *testing.B) {
	const n = freesAtOnce / 4
	p := startFrees(b, anyPython(b))
	c := newCapture(b, Options{}, p.pid)
	c.attach(buildLibrary(b), symbol, 1)
	time1 := func() float64 {
		p.ask("many", n)
		began := time.Now()
		p.ask("many", n)
		return float64(time.Since(began).Nanoseconds()) / n
	}
	least := func() float64 { return min(time1(), time1(), time1(), time1(), time1()) }
	without := least()
	c.watch(p)
	with := without + 1e9
	for range 5 {
		time.Sleep(3 * time.Second) // of freesPerSecond
		with = min(with, time1())
	}
	if !c.watched(p) {
		b.Fatal("not watched any more")
	}
	s, err := c.u.kernel.freed.Stats()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(without, "ns/unwatched")
	b.ReportMetric(with, "ns/watched")
	b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), "kernel-ns/object")
}
