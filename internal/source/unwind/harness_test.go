package unwind

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

const rowNoStack = 3

const symbol = "gm_test_alloc"

// build compiles a file of testdata, once, and returns where the result is.
func build(t testing.TB, cc, out string, args ...string) string {
	t.Helper()
	path := filepath.Join(workDir(t), out)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cmd := exec.Command(cc, append([]string{"-o", path}, args...)...)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, msg)
	}
	return path
}

// skip skips the test, but not where all that tests need is promised.
func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// installedPythons are the system's interpreter and those that pyenv keeps side
// by side.
func installedPythons() []string {
	var pythons []string
	if _, err := os.Stat(systemPython); err == nil {
		pythons = append(pythons, systemPython)
	}
	if home, err := os.UserHomeDir(); err == nil {
		others, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3"))
		pythons = append(pythons, others...)
	}
	return pythons
}

// systemPython is stripped of its local symbols by distributions.
const systemPython = "/usr/bin/python3"

// pythonMinor returns 11 for CPython 3.11.
func pythonMinor(t testing.TB, python string) int {
	t.Helper()
	out, err := exec.Command(python, "-c", "import sys; print(sys.version_info[1])").Output()
	if err != nil {
		t.Fatalf("%s: %v", python, err)
	}
	minor, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatalf("%s: %v", python, err)
	}
	return minor
}

var built struct {
	sync.Once
	dir string
}

// workDir is one directory for all tests: the unwinder knows a library by its
// file, and programs find libraries beside them.
func workDir(t testing.TB) string {
	built.Do(func() {
		var err error
		if built.dir, err = os.MkdirTemp("", "unwind"); err != nil {
			t.Fatal(err)
		}
	})
	return built.dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

func buildLibrary(t testing.TB) string {
	return build(t, "gcc", "liballoc.so", "-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "testdata/liballoc.c")
}

// buildProgram links a program against the library.
func buildProgram(t testing.TB, cc, name string, args ...string) string {
	buildLibrary(t)
	return build(t, cc, name, append(args, "-L"+workDir(t), "-lalloc", "-Wl,-rpath,$ORIGIN", "-pthread")...)
}

// buildCalls makes the program whose frames have no frame pointers.
func buildCalls(t testing.TB) string {
	return buildProgram(t, "gcc", "calls", "-O2", "-fomit-frame-pointer", "testdata/calls.c")
}

// A target is a program that waits for a line before it calls and says "done"
// after.
type target struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	pid int
}

func startTarget(t testing.TB, name string, args ...string) *target {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "LIBALLOC="+filepath.Join(workDir(t), "liballoc.so"))
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
	p := &target{t: t, cmd: cmd, in: in, out: bufio.NewReader(out), pid: cmd.Process.Pid}
	t.Cleanup(p.end)
	p.expect("ready")
	return p
}

func (p *target) expect(want string) string {
	p.t.Helper()
	stuck := time.AfterFunc(time.Minute, func() { p.cmd.Process.Kill() })
	defer stuck.Stop()
	for {
		line, err := p.out.ReadString('\n')
		if err != nil {
			p.t.Fatalf("target: %v before %q", err, want)
		}
		if bytes.HasPrefix([]byte(line), []byte(want)) {
			return line
		}
	}
}

// run has it make its calls, and returns what it says then.
func (p *target) run() string { return p.ask("go") }

// ask has it do what a line says, and returns its answer.
func (p *target) ask(words ...any) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, words...); err != nil {
		p.t.Fatal(err)
	}
	return p.expect("done")
}

func (p *target) end() {
	p.in.Close()
	p.cmd.Wait()
}

// A call is an event's thread and stack.
type call struct {
	tid   uint32
	stack uint64
}

// A capture is the events of one probed function.
type capture struct {
	t      testing.TB
	base   *ebpf.Collection
	u      *Unwinder
	links  []link.Link
	multi  bool
	reader *ringbuf.Reader
	hold   sync.Mutex // held: no event is read

	mu     sync.Mutex
	counts map[uint64]uint64 // events by stack id
	events []call            // in the order of the ring, which is each thread's own
	stacks map[uint64]Stack
	pids   map[uint64]uint32
	raw    map[uint64][]uint64
	closed chan struct{}
	close  func() // once
}

func newCapture(t testing.TB, opts Options, pids ...int) *capture {
	t.Helper()
	c := &capture{
		t:      t,
		counts: make(map[uint64]uint64),
		stacks: make(map[uint64]Stack),
		raw:    make(map[uint64][]uint64),
		pids:   make(map[uint64]uint32),
		closed: make(chan struct{}),
	}
	spec, err := bpf.LoadGpumemtrace()
	if err != nil {
		t.Fatal(err)
	}
	stats, _ := ebpf.EnableStats(0)
	t.Cleanup(func() { stats.Close() })
	c.multi = opts.Attach == ebpf.AttachTraceUprobeMulti
	for _, name := range []string{"gm_call_enter", "gm_call_back", "gm_call_exit", "gm_tensor_enter"} { // they share a program array
		spec.Programs[name].AttachType = opts.Attach
	}
	if c.base, err = ebpf.NewCollection(spec); err != nil {
		t.Fatal(err)
	}
	opts.Maps = c.base.Maps
	if c.u, err = Start(context.Background(), opts); err != nil {
		if ve, ok := errors.AsType[*ebpf.VerifierError](err); ok {
			for _, l := range ve.Log[max(0, len(ve.Log)-40):] {
				t.Log(l)
			}
		}
		t.Fatalf("%+v", err)
	}
	if err := c.base.Maps["exits"].Put(uint32(0), c.u.kernel.exit); err != nil {
		t.Fatal(err)
	}
	for row, class := range []byte{0, 1, 2, 1} { // off, emit, around, emit
		value := make([]byte, c.base.Maps["rows"].ValueSize())
		value[0], value[2] = class, 1 // u16 each; GM_ROW_STACK
		if row == rowNoStack {
			value[2] = 0
		}
		if err := c.base.Maps["rows"].Put(uint32(row), value); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range pids {
		c.trace(pid)
	}
	if c.reader, err = ringbuf.NewReader(c.base.Maps["events"]); err != nil {
		t.Fatal(err)
	}
	go c.read()
	c.close = sync.OnceFunc(c.closeAll)
	t.Cleanup(c.close)
	return c
}

// begin makes c the capture of a subtest: it has seen no events.
func (c *capture) begin(t testing.TB) {
	parent := c.t
	c.t = t
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
	c.events = nil
	t.Cleanup(func() {
		c.t = parent
		for _, l := range c.links {
			l.Close()
		}
		c.links = nil
	})
}

func (c *capture) trace(pid int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	if err := c.u.Analyze(ctx, pid); err != nil {
		c.t.Fatal(err)
	}
	c.t.Logf("analysed %d in %v", pid, time.Since(began).Round(time.Millisecond))
	if err := c.base.Maps["targets"].Put(uint32(pid), make([]byte, c.base.Maps["targets"].ValueSize())); err != nil {
		c.t.Fatal(err)
	}
}

// attach probes the function of the library as row.
func (c *capture) attach(library, function string, row uint64) {
	c.t.Helper()
	ex, err := link.OpenExecutable(library)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.multi {
		opts := &link.UprobeMultiOptions{Cookies: []uint64{row}}
		enter, err := ex.UprobeMulti([]string{function}, c.base.Programs["gm_call_enter"], opts)
		if err != nil {
			c.t.Fatal(err)
		}
		exit, err := ex.UretprobeMulti([]string{function}, c.u.kernel.exit, opts)
		if err != nil {
			c.t.Fatal(err)
		}
		c.links = append(c.links, enter, exit)
		return
	}
	opts := &link.UprobeOptions{Cookie: row}
	enter, err := ex.Uprobe(function, c.base.Programs["gm_call_enter"], opts)
	if err != nil {
		c.t.Fatal(err)
	}
	exit, err := ex.Uretprobe(function, c.u.kernel.exit, opts)
	if err != nil {
		c.t.Fatal(err)
	}
	c.links = append(c.links, enter, exit)
}

func (c *capture) read() {
	defer close(c.closed)
	var rec ringbuf.Record
	users, err := bpf.MapUsers(c.base.Maps["users"])
	if err != nil {
		c.t.Error(err)
	}
	for {
		c.hold.Lock()
		c.reader.SetDeadline(time.Now().Add(20 * time.Millisecond))
		err := c.reader.ReadInto(&rec)
		if err == nil {
			users.MarkRead(binary.NativeEndian.Uint16(rec.RawSample[2:]), rec.RawSample)
			c.add(rec.RawSample)
		}
		c.hold.Unlock()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// add notes an event or a stack.
func (c *capture) add(b []byte) {
	switch b[0] {
	case 1: // struct gm_event
		c.mu.Lock()
		e := call{tid: binary.NativeEndian.Uint32(b[28:]), stack: binary.NativeEndian.Uint64(b[48:])}
		c.counts[e.stack]++
		c.events = append(c.events, e)
		c.mu.Unlock()
	case 2: // struct gm_stack
		n := (len(b) - 32) / 8
		id := binary.NativeEndian.Uint64(b[8:])
		pid := binary.NativeEndian.Uint32(b[24:])
		flags := binary.NativeEndian.Uint32(b[28:])
		words := make([]uint64, n)
		for i := range words {
			words[i] = binary.NativeEndian.Uint64(b[32+8*i:])
		}
		s := c.u.Decode(pid, flags, binary.NativeEndian.Uint32(b[4:]), words)
		c.mu.Lock()
		c.stacks[id], c.pids[id], c.raw[id] = s, pid, words
		c.mu.Unlock()
	}
}

// detach takes the probes off and returns when n events have come. There are
// no more then.
func (c *capture) detach(n uint64) {
	c.t.Helper()
	for _, l := range c.links {
		l.Close()
	}
	c.links = nil
	c.u.Drain(5 * time.Second)
	deadline := time.Now().Add(5 * time.Minute)
	for {
		c.mu.Lock()
		var have uint64
		told := true
		for id, k := range c.counts {
			_, ok := c.stacks[id]
			told = told && (ok || id == 0)
			have += k
		}
		c.mu.Unlock()
		if have == n && told {
			return
		}
		if have > n || time.Now().After(deadline) {
			c.stats()
			c.t.Log(c.base.Programs["gm_call_enter"].Stats())
			c.t.Log(c.u.kernel.exit.Stats())
			c.t.Fatalf("%d events, want %d; loss %v", have, n, c.loss())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *capture) closeAll() {
	for _, l := range c.links {
		l.Close()
	}
	c.reader.Close()
	<-c.closed
	if err := c.u.Close(); err != nil {
		c.t.Error(err)
	}
	c.base.Close()
}

// loss returns the counters of enum gm_loss.
func (c *capture) loss() []uint64 {
	var loss []uint64
	var key uint32
	var n uint64
	for it := c.base.Maps["loss"].Iterate(); it.Next(&key, &n); {
		loss = append(loss, n)
	}
	return loss
}

func (c *capture) stats() Stats {
	c.t.Helper()
	s, err := c.u.Stats()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Logf("%+v", s)
	return s
}

// names renders a stack's frames by symbol table, with the help of addr2line's
// own reading of the files.
func (c *capture) names(id uint64) []string {
	var names []string
	for _, f := range c.stacks[id].Frames {
		if f.Kind == Python {
			names = append(names, fmt.Sprintf("%s %s:%d", f.Function, filepath.Base(f.File), f.Line))
			continue
		}
		addr := f.Addr
		if f.Return {
			addr--
		}
		names = append(names, nameOf(c.t, int(c.pids[id]), addr))
	}
	return names
}

// want fails unless the complete stacks with these frames were seen n times.
// "..." is any number of frames.
func (c *capture) want(n uint64, frames []string) {
	c.t.Helper()
	var have uint64
	for id, k := range c.counts {
		if c.stacks[id].Err == nil && match(frames, c.names(id)) {
			have += k
		}
	}
	if have != n {
		for id, k := range c.counts {
			c.t.Log(k, c.stacks[id].Err, c.names(id))
		}
		c.t.Errorf("%d events, want %d, with frames %v", have, n, frames)
	}
}

func match(want, have []string) bool {
	if len(want) == 0 {
		return len(have) == 0
	}
	if want[0] == "..." {
		return match(want[1:], have) || len(have) > 0 && match(want, have[1:])
	}
	return len(have) > 0 && want[0] == have[0] && match(want[1:], have[1:])
}

// cost returns the mean run time of the exit program and all that it calls on
// to, in nanoseconds.
func (c *capture) cost() float64 {
	s, err := c.u.kernel.exit.Stats()
	if err != nil {
		c.t.Fatal(err)
	}
	return float64(s.Runtime.Nanoseconds()) / float64(s.RunCount)
}

// wantPython fails unless the stacks with these Python frames, other frames
// left out, were seen n times. Before CPython 3.11 functions have no class;
// the lines of Python's own library are not compared.
func (c *capture) wantPython(n uint64, frames []string) {
	c.t.Helper()
	var have uint64
	for id, k := range c.counts {
		var python []string
		for _, f := range c.stacks[id].Frames {
			if f.Kind != Python {
				continue
			}
			s := fmt.Sprintf("%s %s", f.Function, filepath.Base(f.File))
			if filepath.Base(f.File) == "calls.py" {
				s += fmt.Sprint(":", f.Line)
			}
			python = append(python, s)
		}
		if slices.EqualFunc(frames, python, func(want, have string) bool {
			function, place, _ := strings.Cut(want, " ")
			return have == want || have == function[strings.LastIndex(function, ".")+1:]+" "+place
		}) {
			have += k
		}
	}
	if have != n {
		for id, k := range c.counts {
			c.t.Log(k, c.stacks[id].Err, strings.Join(c.names(id), " | "))
		}
		c.t.Errorf("%d events, want %d, with Python frames %v", have, n, frames)
	}
}

func buildGo(t testing.TB) string {
	buildLibrary(t)
	path := filepath.Join(workDir(t), "gocaller")
	cmd := exec.Command("go", "build", "-o", path, "./testdata/gocaller")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1",
		"CGO_LDFLAGS=-L"+workDir(t)+" -lalloc -Wl,-rpath,$ORIGIN", "CGO_LDFLAGS_ALLOW=.*")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, msg)
	}
	return path
}
