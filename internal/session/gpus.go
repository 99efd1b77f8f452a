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

	mu       sync.Mutex
	accounts map[accountKey]*account
	ordinals map[uint32]map[int]gpu.Device
	// empty are processes that were seen to hold nothing.
	empty   map[uint32]bool
	initial bool // in the initial PID namespace

	suspects map[uint32]*suspects // since the last reading, by process
	look     chan struct{}        // asks for a reading soon
}

type accountKey struct {
	pid  uint32
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
}

// openGPUs asks NVML for the GPUs. Without NVML everything but the driver's
// view works; why it is missing is returned for the user.
func openGPUs() (*gpus, string) {
	g := newGPUs()
	n, err := gpu.Open()
	if err != nil {
		return g, fmt.Sprintf("the driver's own totals are not known: %v", err)
	}
	if err := g.use(n); err != nil {
		n.Close()
		return g, fmt.Sprintf("the driver's own totals are not known: %v", err)
	}
	return g, ""
}

func newGPUs() *gpus {
	return &gpus{accounts: map[accountKey]*account{}, ordinals: map[uint32]map[int]gpu.Device{},
		empty: map[uint32]bool{}, initial: probes.InitialPIDNamespace(),
		suspects: map[uint32]*suspects{}, look: make(chan struct{}, 1)}
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
	if d, ok := g.device(site.Proc.PID, site.Device); ok {
		return d.Label()
	}
	return "unknown"
}

// device returns the GPU that a process calls ordinal. NoDevice is the GPU of
// memory whose context was never seen: known when the process uses one only.
func (g *gpus) device(pid uint32, ordinal int32) (gpu.Device, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, ok := g.ordinals[pid][int(ordinal)]
	return d, ok
}

// forget drops what was known of an earlier process with this PID.
func (g *gpus) forget(pid uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.ordinals, pid)
	delete(g.empty, pid)
	delete(g.suspects, pid)
	maps.DeleteFunc(g.accounts, func(k accountKey, _ *account) bool { return k.pid == pid })
}

// resolve works out which GPUs the ordinals that a process uses are. listed
// are the devices on which NVML lists it, by UUID.
func (g *gpus) resolve(pid uint32, used []int, listed []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.ordinals[pid]
	if known == nil {
		known = map[int]gpu.Device{}
		g.ordinals[pid] = known
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
	if !slices.ContainsFunc(used, func(o int) bool { _, ok := known[o]; return !ok }) {
		return
	}
	evidence, err := gpu.Look(int(pid))
	if err != nil {
		return // gone: what is known stays
	}
	evidence.Used, evidence.Listed = used, listed
	if found, err := gpu.Resolve(g.devices, evidence); err == nil {
		maps.Copy(known, found)
	}
}

// A holding is what the ledger says of one process on one GPU.
type holding struct {
	tracked  int64
	rounding gpu.Rounding
}

// A process as accounts see it.
type accountable struct {
	pid       uint32
	fromStart bool
	unmatched uint64
	peak      int64
	used      []int // ordinals
	holdings  map[int32]*holding
}

// observe reads the driver's figures for processes and advances their accounts.
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
			if !slices.ContainsFunc(lists[d.UUID], func(u gpu.ProcessUse) bool { return u.PID == int(p.pid) }) {
				continue
			}
			listed = append(listed, d.UUID)
			if use, err := g.nvml.Use(d, int(p.pid)); err == nil {
				uses[d.UUID] = use
			}
		}
		if listed == nil {
			g.unlisted(p)
			continue // ended, or in another PID namespace: the last reading stays
		}
		g.resolve(p.pid, p.used, listed)
		byDevice := map[string]*holding{}
		for ordinal, h := range p.holdings {
			if d, ok := g.device(p.pid, ordinal); ok {
				sum := byDevice[d.UUID]
				if sum == nil {
					sum = &holding{}
					byDevice[d.UUID] = sum
				}
				sum.tracked += h.tracked
				sum.rounding = h.rounding
			}
		}
		for _, d := range g.devices {
			if slices.Contains(listed, d.UUID) {
				g.advance(p, d, uses[d.UUID], byDevice[d.UUID])
			}
		}
		g.mu.Lock()
		delete(g.suspects, p.pid)
		g.mu.Unlock()
	}
}

// unlisted takes note of a process that the driver does not know before its
// account begins: it holds nothing yet, so everything will be seen. That can be
// told in the initial PID namespace only; elsewhere the driver may hide it.
func (g *gpus) unlisted(p *accountable) {
	if !g.initial {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.accounts {
		if key.pid == p.pid {
			return
		}
	}
	g.empty[p.pid] = true
}

func (g *gpus) advance(p *accountable, d gpu.Device, use gpu.ProcessUse, h *holding) {
	if h == nil {
		h = &holding{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	key := accountKey{p.pid, d.UUID}
	a := g.accounts[key]
	if a == nil {
		a = &account{Account: gpu.Account{FromStart: p.fromStart || g.empty[p.pid]}, device: d}
		g.accounts[key] = a
	}
	a.last = a.Observe(gpu.Reading{NVML: use, Tracked: h.tracked, Rounding: h.rounding.Bytes(), Unmatched: p.unmatched})
	a.grew(a.last.Grew, g.suspects[p.pid])
	if p.peak > a.peak || a.atPeak == nil {
		a.peak, a.atPeak = p.peak, a.last.Lines
	}
}

// statements returns the accounts of a process, by GPU, and what the driver
// holds beyond tracked allocations as samples of kind "driver".
func (g *gpus) statements(b *builder, pid uint32, name string) (out []snapshot.Account, samples []snapshot.Sample) {
	g.mu.Lock()
	var growths []grown
	for _, d := range g.devices {
		a := g.accounts[accountKey{pid, d.UUID}]
		if a == nil {
			continue
		}
		for _, w := range a.growths {
			growths = append(growths, grown{d.Label(), w})
		}
		st := snapshot.Account{PID: int(pid), Process: name, GPU: d.Label(), Total: a.last.Total, Known: a.last.Known, Inferred: a.last.Inferred}
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
				Labels: snapshot.Labels{Kind: "driver", GPU: d.Label(), Owner: "cuda", Process: name, PID: int(pid)},
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

// memory returns every GPU's state and who is on it, nil without NVML.
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
