package session

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// accountInterval is how often the driver's figures are read between
// snapshots: they are gone once a process has ended.
const accountInterval = time.Second

// A driver says what GPUs there are and who holds how much: *gpu.NVML.
type driver interface {
	Devices() ([]gpu.Device, error)
	DriverVersion() (string, error)
	Processes(gpu.Device) ([]gpu.ProcessUse, error)
	Use(gpu.Device, int) (gpu.ProcessUse, error)
	Close() error
}

// gpus knows the machine's GPUs and keeps an account for each process on each.
type gpus struct {
	nvml    driver // nil: not to be had
	version string // of the driver
	devices []gpu.Device

	mu       sync.Mutex // never held while anything is waited for
	accounts map[accountKey]*account
	ordinals map[event.Process]map[int]gpu.Device
	// empty are processes that were seen to hold nothing.
	empty   map[event.Process]bool
	initial bool // in the initial PID namespace

	suspects map[event.Process]*suspects // since the last reading
	look     chan struct{}               // asks for a reading soon
}

type accountKey struct {
	proc event.Process
	uuid string
}

// An account is a process on a GPU, over time.
type account struct {
	gpu.Account
	device gpu.Device
	last   gpu.Statement
	peak   int64 // of the process's device total, at the last reading
	// atPeak are the statement's lines read first after the highest total.
	atPeak  []gpu.Line
	growths []growth // parts of the context's line, by call site
	// unlisted is how many readings in a row did not show the process here.
	unlisted int
}

// openGPUs asks NVML for the GPUs. Without NVML everything but the driver's
// view works; why it is missing is returned for the user.
func openGPUs() (*gpus, string) {
	type opened struct {
		g   *gpus
		err error
	}
	done := make(chan opened, 1)
	go func() {
		g := newGPUs()
		n, err := gpu.Open()
		if err == nil {
			if err = g.use(n); err != nil {
				n.Close()
			}
		}
		done <- opened{g, err}
	}()
	var err error
	select {
	case o := <-done:
		if err = o.err; err == nil {
			return o.g, ""
		}
	case <-time.After(openPatience):
		err = fmt.Errorf("NVML has not answered for %v", openPatience)
	}
	return newGPUs(), fmt.Sprintf("the driver's own totals are not known: %v", err)
}

// openPatience bounds how long NVML may take to start: seconds where the driver
// must set a GPU up first.
const openPatience = 20 * time.Second

func newGPUs() *gpus {
	return &gpus{accounts: map[accountKey]*account{}, ordinals: map[event.Process]map[int]gpu.Device{},
		empty: map[event.Process]bool{}, initial: probes.InitialPIDNamespace(),
		suspects: map[event.Process]*suspects{}, look: make(chan struct{}, 1)}
}

// use takes a driver's view from now on.
func (g *gpus) use(d driver) (err error) {
	if g.devices, err = d.Devices(); err != nil {
		return err
	}
	g.nvml = d
	g.version, _ = d.DriverVersion()
	return nil
}

func (g *gpus) close() error {
	if g.nvml == nil {
		return nil
	}
	return g.nvml.Close()
}

// label returns the GPU label of a site: the index that NVML shows, "unknown",
// or "" for memory on no GPU. Without NVML it is the process's own ordinal.
func (g *gpus) label(site *ledger.Site) string {
	if site.Kind.Class() == event.ClassHost {
		return ""
	}
	if g.nvml == nil {
		if site.Device == event.NoDevice {
			return "unknown"
		}
		return fmt.Sprintf("cuda:%d", site.Device)
	}
	if d, ok := g.device(site.Proc, site.Device); ok {
		return d.Label()
	}
	return "unknown"
}

// device returns the GPU that a process calls ordinal. NoDevice is the GPU of
// memory whose context was never seen: known when the process uses one only.
func (g *gpus) device(proc event.Process, ordinal int32) (gpu.Device, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, ok := g.ordinals[proc][int(ordinal)]
	return d, ok
}

// forget drops what is known of processes that are shown no more.
func (g *gpus) forget(procs ...event.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, proc := range procs {
		delete(g.ordinals, proc)
		delete(g.empty, proc)
		delete(g.suspects, proc)
		for _, d := range g.devices {
			delete(g.accounts, accountKey{proc, d.UUID})
		}
	}
}

// resolve works out which GPUs the ordinals that a process uses are. listed
// are the devices on which NVML lists it, by UUID.
func (g *gpus) resolve(proc event.Process, used []int, listed []string) {
	if g.settled(proc, used, listed) {
		return
	}
	evidence, err := gpu.Look(int(proc.PID))
	if err != nil {
		return // gone: what is known stays
	}
	evidence.Used, evidence.Listed = used, listed
	found, err := gpu.Resolve(g.devices, evidence)
	if err != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.Copy(g.ordinals[proc], found)
}

// settled takes what the list alone says, and tells whether every ordinal is
// known.
func (g *gpus) settled(proc event.Process, used []int, listed []string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.ordinals[proc]
	if known == nil {
		known = map[int]gpu.Device{}
		g.ordinals[proc] = known
	}
	if len(listed) == 1 {
		for _, d := range g.devices {
			if d.UUID == listed[0] {
				known[int(event.NoDevice)] = d
			}
		}
	} else if len(listed) > 1 {
		delete(known, int(event.NoDevice))
	}
	return !slices.ContainsFunc(used, func(o int) bool { _, ok := known[o]; return !ok })
}

// A holding is what the ledger says of one process on one GPU.
type holding struct {
	tracked  int64
	rounding gpu.Rounding
}

// A process as accounts see it.
type accountable struct {
	proc      event.Process
	fromStart bool
	unmatched uint64
	peak      int64
	used      []int // ordinals
	holdings  map[int32]*holding
}

// observe reads the driver's figures for processes and advances their accounts.
// It is for one goroutine.
func (g *gpus) observe(processes []*accountable) {
	if g.nvml == nil {
		return
	}
	lists := map[string][]gpu.ProcessUse{}
	for _, d := range g.devices {
		if all, err := g.nvml.Processes(d); err == nil {
			lists[d.UUID] = all
		}
	}
	for _, p := range processes {
		var listed []string
		uses := map[string]gpu.ProcessUse{}
		for _, d := range g.devices {
			if !slices.ContainsFunc(lists[d.UUID], func(u gpu.ProcessUse) bool { return u.PID == int(p.proc.PID) }) {
				continue
			}
			listed = append(listed, d.UUID)
			if use, err := g.nvml.Use(d, int(p.proc.PID)); err == nil {
				uses[d.UUID] = use
			}
		}
		g.missing(p, lists, listed)
		if listed == nil {
			continue
		}
		g.resolve(p.proc, p.used, listed)
		byDevice := map[string]*holding{}
		for ordinal, h := range p.holdings {
			if d, ok := g.device(p.proc, ordinal); ok {
				sum := byDevice[d.UUID]
				if sum == nil {
					sum = &holding{}
					byDevice[d.UUID] = sum
				}
				sum.tracked += h.tracked
				sum.rounding.Merge(h.rounding)
			}
		}
		for _, d := range g.devices {
			if slices.Contains(listed, d.UUID) {
				g.advance(p, d, uses[d.UUID], byDevice[d.UUID])
			}
		}
		g.mu.Lock()
		delete(g.suspects, p.proc)
		g.mu.Unlock()
	}
}

// contextGone is how many readings in a row must not list a living process on a
// GPU before its context there counts as gone: one may fall between the end of
// the context and that of the process, whose last figures stay.
const contextGone = 2

// missing takes note of the GPUs on which the driver does not list a process:
// lists are those that answered, listed those that name it. Before its account
// begins it holds nothing yet, so everything will be seen; later, its context
// is gone, and what the driver said of it no longer holds. That can be told in
// the initial PID namespace only; elsewhere the driver may hide it.
func (g *gpus) missing(p *accountable, lists map[string][]gpu.ProcessUse, listed []string) {
	if !g.initial {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	known := len(listed) > 0
	for _, d := range g.devices {
		a := g.accounts[accountKey{p.proc, d.UUID}]
		_, answered := lists[d.UUID]
		switch {
		case a == nil:
			continue
		case slices.Contains(listed, d.UUID):
			a.unlisted = 0
		case answered:
			if a.unlisted++; a.unlisted >= contextGone {
				delete(g.accounts, accountKey{p.proc, d.UUID})
			}
		}
		known = true
	}
	if !known {
		g.empty[p.proc] = true
	}
}

func (g *gpus) advance(p *accountable, d gpu.Device, use gpu.ProcessUse, h *holding) {
	if h == nil {
		h = &holding{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := accountKey{p.proc, d.UUID}
	a := g.accounts[key]
	if a == nil {
		a = &account{Account: gpu.Account{FromStart: p.fromStart || g.empty[p.proc]}, device: d}
		g.accounts[key] = a
	}
	a.last = a.Observe(gpu.Reading{NVML: use, Tracked: h.tracked, Rounding: h.rounding.Bytes(), Unmatched: p.unmatched})
	a.grew(a.last.Grew, g.suspects[p.proc])
	if p.peak > a.peak || a.atPeak == nil {
		a.peak, a.atPeak = p.peak, a.last.Lines
	}
}

// statements returns the accounts of a process, by GPU, and what the driver
// holds beyond tracked allocations as samples of kind "driver".
func (g *gpus) statements(b *builder, proc event.Process, name string) (out []snapshot.Account, samples []snapshot.Sample) {
	g.mu.Lock()
	var growths []grown
	for _, d := range g.devices {
		a := g.accounts[accountKey{proc, d.UUID}]
		if a == nil {
			continue
		}
		for _, w := range a.growths {
			growths = append(growths, grown{d.Label(), w})
		}
		st := snapshot.Account{PID: int(proc.PID), Process: name, GPU: d.Label(), Total: a.last.Total, Known: a.last.Known, Inferred: a.last.Inferred}
		for i, l := range a.last.Lines {
			peak := int64(0)
			if i < len(a.atPeak) {
				peak = a.atPeak[i].Bytes
			}
			if explained := a.explained(); l.Name == gpu.LineContext && explained != 0 {
				st.Lines = append(st.Lines, snapshot.AccountLine{Name: lineGrowth, Bytes: explained, Inferred: true, Note: noteGrowth})
				l.Bytes -= explained
			}
			st.Lines = append(st.Lines, snapshot.AccountLine(l))
			if l.Name == gpu.LineTracked || !a.last.Known {
				continue
			}
			s := snapshot.Sample{
				Stack:  []*snapshot.Location{{Lines: []snapshot.Line{{Function: l.Name}}}},
				Labels: snapshot.Labels{Kind: "driver", GPU: d.Label(), Owner: "cuda", Process: name, PID: int(proc.PID)},
			}
			s.InuseBytes, s.PeakBytes = l.Bytes, peak
			samples = append(samples, s)
		}
		out = append(out, st)
	}
	g.mu.Unlock() // naming a stack may take long, and asks for GPUs again
	for _, w := range growths {
		samples = append(samples, b.growth(w, name))
	}
	return out, samples
}

const (
	lineGrowth = "[driver growth, inferred]"
	noteGrowth = "grew across calls that load code, instantiate graphs or set limits; by stack in the profile"
)

// memory returns every GPU's state and who is on it, nil without NVML. It is for
// the goroutine of readings.
func (g *gpus) memory() []snapshot.GPUMemory {
	if g.nvml == nil {
		return nil
	}
	devices, err := g.nvml.Devices()
	if err != nil {
		return nil
	}
	var out []snapshot.GPUMemory
	for _, d := range devices {
		m := snapshot.GPUMemory{GPU: d.Label(), Name: d.Name, Total: d.Memory.Total, Used: d.Memory.Used, Free: d.Memory.Free}
		uses, _ := g.nvml.Processes(d)
		for _, u := range uses {
			m.Processes = append(m.Processes, snapshot.GPUProcess{PID: u.PID, Name: u.Name, Bytes: u.Bytes, Known: u.Known})
		}
		out = append(out, m)
	}
	return out
}
