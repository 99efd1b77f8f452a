package probes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// TestMain leaves the example out where it cannot trace, as needTracing does with tests.
func TestMain(m *testing.M) {
	if checkPrivilege() != nil && os.Getenv("CI") != "true" {
		_ = flag.Set("test.skip", "^Example$")
	}
	os.Exit(m.Run())
}

// needTracing ends a test that cannot trace here: it fails in CI, where a skip
// would hide a gap.
func needTracing(tb testing.TB) {
	tb.Helper()
	if err := checkPrivilege(); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
}

// needAttach ends a test of a way to attach that this kernel lacks.
func needAttach(tb testing.TB, attach ebpf.AttachType) {
	tb.Helper()
	switch {
	case attach == attachSession && haveSession() != nil:
		tb.Skip("this kernel has no uprobe sessions")
	case attach == ebpf.AttachTraceUprobeMulti && !haveMulti():
		tb.Skip("this kernel has no uprobe_multi links")
	}
}

// ringOf gives the ring buffer a size in bytes.
func ringOf(bytes uint32) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) { spec.Maps["events"].MaxEntries = bytes }
}

// by makes one way to attach that of Options.
func by(attach ebpf.AttachType) func() ebpf.AttachType {
	return func() ebpf.AttachType { return attach }
}

// offsetsOf returns the file offsets of a library's functions that match.
func offsetsOf(file string, match func(name []byte) bool) (map[string]uint64, error) {
	f, err := proc.Open(file)
	if err != nil {
		return nil, err
	}
	lib := newLibrary(f, Driver, file)
	defer lib.Close()
	return lib.functions(match)
}

// openLibrary opens a libcuda.
func openLibrary(tb testing.TB, file string) Library {
	tb.Helper()
	f, err := proc.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	lib := newLibrary(f, Driver, file)
	tb.Cleanup(func() { lib.Close() })
	return lib
}

// A trace is a tracer whose events a test reads when it wants to.
type trace struct {
	testing.TB
	*Tracer
	events   []event.Event
	stacks   map[uint64]int // frames by id
	repeated int            // stacks that came again
	warnings chan string
}

func (tr *trace) Event(e *event.Event) { tr.events = append(tr.events, *e) }
func (tr *trace) Stack(s *Stack) {
	if _, ok := tr.stacks[s.ID]; ok {
		tr.repeated++
	}
	tr.stacks[s.ID] = len(s.Words)
}

func openTrace(tb testing.TB, opts Options) *trace {
	tb.Helper()
	needTracing(tb)
	tr := &trace{TB: tb, stacks: map[uint64]int{}, warnings: make(chan string, 100)}
	opts.Warn = func(s string) { tr.warnings <- s }
	var err error
	if tr.Tracer, err = Open(opts); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := tr.Close(); err != nil {
			tb.Error(err)
		}
	})
	return tr
}

// traced opens a tracer that follows children and traces p.
func traced(tb testing.TB, p *testcuda.Process, opts Options) *trace {
	tb.Helper()
	opts.Follow = true
	tr := openTrace(tb, opts)
	tr.target(p.PID())
	return tr
}

func (tr *trace) target(pid int) []Library {
	tr.Helper()
	libs, err := tr.Target(pid)
	if err != nil {
		tr.Fatal(err)
	}
	return libs
}

// drain returns what came since the last time.
func (tr *trace) drain() []event.Event {
	tr.Helper()
	tr.events = nil
	tr.reader.flush()
	if err := tr.Run(tr, nil); err != nil {
		tr.Fatal(err)
	}
	return tr.events
}

// compared waits until the answers of cuGetProcAddress have been compared.
func (tr *trace) compared() {
	tr.Helper()
	eventually(tr, "the answers to be compared", func() bool { return len(tr.guard.answers) == 0 })
	time.Sleep(50 * time.Millisecond) // for the last one, which is no longer waiting
}

// missing returns the functions of the table that each probed library lacks.
func (tr *trace) missing() map[string][]string {
	tr.libs.mu.Lock()
	defer tr.libs.mu.Unlock()
	out := map[string][]string{}
	for _, a := range tr.libs.attachments() {
		if len(a.missing) > 0 {
			out[a.library.Path] = a.missing
		}
	}
	return out
}

func (tr *trace) longestGap() time.Duration {
	tr.libs.mu.Lock()
	defer tr.libs.mu.Unlock()
	return tr.libs.longest
}

// counter returns one counter by name.
func (tr *trace) counter(name string) uint64 {
	tr.Helper()
	for i, c := range kernelCauses { // the ones that Loss leaves out too
		if c.Counter(0).Name == name {
			return tr.kernel.lost(i)
		}
	}
	for _, c := range tr.Loss() {
		if c.Name == name {
			return c.Value
		}
	}
	tr.Fatalf("no counter %s", name)
	return 0
}

// wantLoss checks every counter: those not named must be zero.
func (tr *trace) wantLoss(want map[string]uint64) {
	tr.Helper()
	for _, c := range tr.Loss() {
		if c.Value != want[c.Name] {
			tr.Errorf("%s = %d, want %d", c.Name, c.Value, want[c.Name])
		}
	}
}

// A call names what a test compares of an event.
type call struct {
	api    string
	result int32
}

// tally counts calls, by API and result.
func tally(events []event.Event) map[call]int {
	n := map[call]int{}
	for _, e := range events {
		if e.API != 0 {
			n[call{apiName(e.API), e.Result}]++
		}
	}
	return n
}

func start(tb testing.TB, program testcuda.Program, opts testcuda.Options) *testcuda.Process {
	tb.Helper()
	needTracing(tb)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	tb.Cleanup(cancel)
	p, err := testcuda.Start(ctx, testcuda.Get(tb), program, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	if program != testcuda.Hammer && program != testcuda.Train && len(opts.Args) == 0 {
		run(tb, p, "echo up") // its libraries are mapped
	}
	return p
}

func run(tb testing.TB, p *testcuda.Process, commands ...string) []string {
	tb.Helper()
	lines, err := p.Run(commands...)
	if err != nil {
		tb.Fatal(err)
	}
	return lines
}

func stats(tb testing.TB, p *testcuda.Process) *testcuda.Stats {
	tb.Helper()
	s, err := p.Stats()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// eventually waits for what another goroutine or process does.
func eventually(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited five minutes for %s", what)
		}
	}
}

// compile makes a program or library of a source in testdata.
func compile(tb testing.TB, out, source string, args ...string) {
	tb.Helper()
	args = append([]string{"-O2", "-g", "-Wall", "-fno-omit-frame-pointer", "-pthread", "-o", out, "testdata/" + source}, args...)
	if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
			tb.Skip(err)
		}
		tb.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// format shows events in a test's output.
func format(events []event.Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "\n\t%s op %d pid %d result %d addr %#x size %d", apiName(e.API), e.Op, e.Proc.PID, e.Result, e.Addr, e.Size)
	}
	return b.String()
}

func ops(events []event.Event) (out []event.Op) {
	for _, e := range events {
		out = append(out, e.Op)
	}
	return out
}

func count(events []event.Event, match func(*event.Event) bool) (n int) {
	for i := range events {
		if match(&events[i]) {
			n++
		}
	}
	return n
}

// apiName returns the symbol of an event's API or Outer, "" for 0.
func apiName(api uint16) string { return Entries[api].Symbol }

// attachRows puts probes for the rows wanted on a library, in every process.
func attachRows(lib Library, progs programs, g *gate, want func(*Row) bool) (*attachment, error) {
	s, err := lib.sites(want)
	if err != nil {
		return nil, err
	}
	return attach(lib, s, progs, g, 0)
}
