package unwind

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
)

// codeProgram runs where CPython frees a code object.
const codeProgram = "gm_code_freed"

const (
	// codeLook is how often the processes are looked at, of which stacks with Python
	// frames are taken and which free code objects.
	codeLook = 200 * time.Millisecond
	// A process is not watched any more once it freed freesAtOnce code objects more
	// than freesPerSecond allows. Each costs it about a microsecond.
	freesPerSecond = 5000
	freesAtOnce    = 20000
	// maxWatched bounds the processes that are watched at a time: the kernel asks
	// each one's probe whose an object is that is freed.
	maxWatched = 64
	// maxPythonProcesses bounds those of which it is known that they run a Python.
	maxPythonProcesses = 4096
	// maxCodeAttaching bounds those whose files are being read, which may not answer.
	maxCodeAttaching = 8
	// maxPythonChanges bounds how often a process may map another Python.
	maxPythonChanges = 16
)

// A codeWatch has the kernel side count the code objects that processes free
// (bpf/unwind_codes.h): the memo need not read them then.
//
// Each process has a perf event of its own, whose breakpoint the kernel puts into that
// one's memory alone, for all its threads (uprobe_perf_filter,
// kernel/trace/trace_uprobe.c): others that run the same file pay nothing. A child that
// inherits the breakpoint meets it once. Links of the kind uprobe_multi would come off
// side by side, 64 of them in 0.16 s where perf events take 6.4 s, because the kernel
// takes these off one after the other under a lock of its own (event_mutex). But some
// kernels run a link's program for one thread of the process only, and all of them leave
// the breakpoint in a child until its parent's link is closed.
type codeWatch struct {
	known *knownProcesses
	busy  sync.WaitGroup // with probes that go on and off

	mu        sync.Mutex
	processes map[int]*pythonProcess
	reading   map[*pythonProcess]struct{} // those whose files are being read
	closed    bool
	watched   int           // processes so far
	waiting   int           // processes that find no room
	refused   map[error]int // processes that are not watched, by why
}

// A pythonProcess is a process that maps a Python, or did.
type pythonProcess struct {
	pid      int
	mappings []proc.Mapping // of the Python
	changes  int            // of them
	state    codeState

	// While probes are on.
	probes []codeProbe
	links  []*removal.Probe
	looked time.Time
	freed  uint32  // by then
	excess float64 // code objects beyond freesPerSecond
}

type codeState int

const (
	codeUnwatched codeState = iota // not yet
	codeAttaching
	codeWatched
	codeRefused // not as long as it maps this Python
	codeNever
)

// Why a process is not watched.
var (
	errCodeBusy   = errors.New("they free too many")
	errCodeNone   = errors.New("they map no Python that exports PyCode_Type")
	errCodeLayout = errors.New("their Python's types are not laid out as is known")
	errCodeCopied = errors.New("their Python does not run from its file")
	errCodeFile   = errors.New("their Python's file cannot be read")
	errCodeProbe  = errors.New("the kernel refuses the probe")
	errCodeOther  = errors.New("they map another Python again and again")
)

func newCodeWatch(known *knownProcesses) *codeWatch {
	return &codeWatch{known: known, processes: make(map[int]*pythonProcess), reading: make(map[*pythonProcess]struct{}), refused: make(map[error]int)}
}

// start begins to watch, until ctx ends.
func (c *codeWatch) start(ctx context.Context, program *ebpf.Program) {
	c.busy.Go(func() {
		tick := time.NewTimer(clock.Until(codeLook))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				tick.Reset(clock.Until(codeLook))
				c.look(now, program)
			}
		}
	})
}

// mapped says what a process maps. It waits for nothing.
func (c *codeWatch) mapped(pid int, mappings []proc.Mapping) {
	var pythons []proc.Mapping
	for i := range mappings {
		if ofPython(&mappings[i]) {
			pythons = append(pythons, mappings[i])
		}
	}
	if len(pythons) > maxPythons {
		pythons = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[pid]
	changes := 0
	if p != nil {
		if p.state == codeNever || slices.Equal(p.mappings, pythons) {
			return
		}
		if changes = p.changes + 1; changes > maxPythonChanges {
			c.refuseLocked(p, errCodeOther)
			return
		}
		c.dropLocked(pid)
	}
	if p != nil || len(pythons) > 0 && len(c.processes) < maxPythonProcesses {
		c.processes[pid] = &pythonProcess{pid: pid, mappings: pythons, changes: changes}
	}
}

// forget drops a process that has ended or replaced its image. It waits for nothing.
func (c *codeWatch) forget(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(pid)
}

// keep drops the processes for which alive is false.
func (c *codeWatch) keep(alive func(pid uint32) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid := range c.processes {
		if !alive(uint32(pid)) {
			c.dropLocked(pid)
		}
	}
}

func (c *codeWatch) dropLocked(pid int) {
	if p := c.processes[pid]; p != nil {
		delete(c.processes, pid)
		c.stopLocked(p)
	}
}

// look has processes watched of which stacks with Python frames are taken, and ends
// that of those which it slows.
func (c *codeWatch) look(now time.Time, program *ebpf.Program) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := map[codeState]int{}
	for _, p := range c.processes {
		count[p.state]++
	}
	c.waiting = 0
	for pid, p := range c.processes {
		if p.state != codeUnwatched && p.state != codeWatched {
			continue
		}
		known, ok := c.known.get(pid)
		switch {
		case !ok:
		case p.state == codeWatched:
			if p.tooMany(known.Freed, now) {
				c.refuseLocked(p, errCodeBusy)
			}
		case known.Image == 0 || c.closed:
		case count[codeAttaching] >= maxCodeAttaching, count[codeAttaching]+count[codeWatched] >= maxWatched:
			c.waiting++
		default:
			p.state = codeAttaching
			c.reading[p] = struct{}{}
			count[codeAttaching]++
			c.busy.Go(func() { c.attach(p, program) })
		}
	}
}

// tooMany tells whether a process frees so many code objects that watching slows it.
// freed is how many it freed until now, or fewer: some are lost where user space writes to
// the same entry (knownProcesses).
func (p *pythonProcess) tooMany(freed uint32, now time.Time) bool {
	allowed := freesPerSecond * now.Sub(p.looked).Seconds()
	p.excess = max(0, p.excess+float64(int32(freed-p.freed))-allowed)
	p.freed, p.looked = freed, now
	return p.excess > freesAtOnce
}

// attach has a process watched. It may take as long as its files and memory do.
func (c *codeWatch) attach(p *pythonProcess, program *ebpf.Program) {
	probes, links, err := putProbes(p, program)
	ended := err != nil && gone(p.pid)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reading, p)
	p.probes, p.links = probes, links
	if c.processes[p.pid] != p { // it is another one by now, or maps another Python
		c.releaseLocked(p)
		return
	}
	switch {
	case ended || err == nil && c.known.watch(p.pid, true) != nil:
		c.stopLocked(p)
		return
	case err != nil:
		c.refuseLocked(p, err)
		return
	}
	c.watched++
	known, _ := c.known.get(p.pid)
	p.state, p.freed, p.looked = codeWatched, known.Freed, time.Now()
}

// putProbes puts on all probes of a process. What it put on comes with an error, too.
func putProbes(p *pythonProcess, program *ebpf.Program) (probes []codeProbe, links []*removal.Probe, err error) {
	probes, err = codeProbes(p.pid, p.mappings)
	switch {
	case errors.Is(err, errCodeLayout):
		return nil, nil, errCodeLayout
	case errors.Is(err, errCodeCopied):
		return nil, nil, errCodeCopied
	case err != nil:
		return nil, nil, errCodeFile
	case len(probes) == 0:
		return nil, nil, errCodeNone
	}
	for _, probe := range probes {
		l, err := probe.attach(program, p.pid)
		if err != nil {
			return probes, links, errCodeProbe
		}
		links = append(links, l)
	}
	for _, probe := range probes {
		if !probe.trapped(p.pid) {
			return probes, links, errCodeCopied
		}
	}
	return probes, links, nil
}

// refuseLocked has a process watched no more, because of one of the errors above.
func (c *codeWatch) refuseLocked(p *pythonProcess, why error) {
	c.stopLocked(p)
	if p.state = codeRefused; errors.Is(why, errCodeBusy) || errors.Is(why, errCodeOther) {
		p.state = codeNever
	}
	c.refused[why]++
}

// stopLocked has a process watched no more: first the kernel side is told, then the
// probes go.
func (c *codeWatch) stopLocked(p *pythonProcess) {
	if p.state == codeWatched {
		if err := c.known.watch(p.pid, false); err != nil {
			_ = c.known.forget(p.pid) // it fails if nothing is known, as is wanted
		}
	}
	p.state = codeUnwatched
	c.releaseLocked(p)
}

// releaseLocked takes the probes off, which takes tens of milliseconds.
func (c *codeWatch) releaseLocked(p *pythonProcess) {
	links, probes := p.links, p.probes
	p.links, p.probes = nil, nil
	if len(links)+len(probes) == 0 {
		return
	}
	c.busy.Go(func() {
		for _, l := range links {
			l.Close()
		}
		closeProbes(probes)
	})
}

// attach puts the probe on, in one process.
func (p codeProbe) attach(program *ebpf.Program, pid int) (*removal.Probe, error) {
	ex, err := link.OpenExecutable(p.file.Link())
	if err != nil {
		return nil, err
	}
	return removal.Put(fmt.Sprintf("the probe on the Python of process %d", pid), func() (io.Closer, error) {
		return ex.Uprobe("", program, &link.UprobeOptions{Address: p.offset, PID: pid})
	})
}

// breakpoint is what the kernel puts where a probe lies (UPROBE_SWBP_INSN).
var breakpoint = map[string][]byte{"amd64": {0xcc}, "arm64": {0xa0, 0x00, 0x20, 0xd4}}[runtime.GOARCH]

// trapped tells whether the breakpoint stands in the process's memory. Where the code
// was copied to memory of the process's own, there is none.
func (p codeProbe) trapped(pid int) bool {
	s := &span{at: p.at, to: make([]byte, len(breakpoint))}
	processMemory(pid).read([]*span{s})
	return s.ok && bytes.Equal(s.to, breakpoint)
}

// notes say, for people, how many processes are watched, and why others are not.
func (c *codeWatch) notes() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched > 0 {
		out = append(out, fmt.Sprintf("of %d processes Python code objects were watched", c.watched))
	}
	if c.waiting > 0 {
		out = append(out, fmt.Sprintf("of %d processes Python code objects are read for each stack: too many others are watched", c.waiting))
	}
	for why, n := range c.refused {
		out = append(out, fmt.Sprintf("of %d processes Python code objects are read for each stack: %v", n, why))
	}
	slices.Sort(out)
	return out
}

// close takes all probes off, and waits for as long as probes come off. The programs that
// go by the cells must be off.
func (c *codeWatch) close() error {
	c.mu.Lock()
	c.closed = true
	for pid := range c.processes {
		c.dropLocked(pid)
	}
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.busy.Wait()
		close(done)
	}()
	err := removal.Wait(done)
	if errors.Is(err, removal.ErrStalled) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for p := range c.reading {
			return fmt.Errorf("%s, the Python of process %d, cannot be read to its end", p.mappings[0].Name(), p.pid)
		}
	}
	return err
}
