package account

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/record"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// Accounts are all processes on all GPUs.
type Accounts struct {
	// Initial: the driver lists every process, see record.Trace.
	Initial bool

	devices  []record.Device // as last read
	accounts map[key]*account
	ordinals map[event.Process]map[int32]gpu
	// empty are processes that were seen to hold nothing.
	empty    map[event.Process]bool
	suspects map[event.Process]*suspects // since the last reading
}

type key struct {
	process event.Process
	uuid    string
}

type gpu struct{ uuid, label string }

// New returns Accounts that no reading was made for.
func New() *Accounts {
	return &Accounts{accounts: map[key]*account{}, ordinals: map[event.Process]map[int32]gpu{},
		empty: map[event.Process]bool{}, suspects: map[event.Process]*suspects{}}
}

// A Process is what accounts must know of one.
type Process struct {
	Process   event.Process
	FromStart bool // traced before its first allocation
	Unmatched int64
	Peak      int64 // bytes
	Holdings  []ledger.Holding
}

// Label returns the label of the GPU that a process calls ordinal, and whether
// it is known.
func (a *Accounts) Label(p event.Process, ordinal int32) (string, bool) {
	g, ok := a.ordinals[p][ordinal]
	return g.label, ok
}

// Observe takes a reading, and advances the accounts of processes as they are
// at its moment.
func (a *Accounts) Observe(r *record.Reading, processes []Process) {
	a.devices = r.Devices
	// Of others, which ended while the reading was made, nobody asks.
	told := make(map[event.Process]map[int32]gpu, len(processes))
	for i := range processes {
		told[processes[i].Process] = nil
	}
	for _, o := range r.Ordinals {
		known, ours := told[o.Process]
		if !ours || o.Device < 0 || o.Device >= len(r.Devices) {
			continue
		}
		if known == nil {
			known = map[int32]gpu{}
			told[o.Process], a.ordinals[o.Process] = known, known
		}
		d := &r.Devices[o.Device]
		known[o.Ordinal] = gpu{d.UUID, d.Label}
	}
	for i := range processes {
		p := &processes[i]
		listed := make([]bool, len(r.Devices))
		for i, d := range r.Devices {
			listed[i] = d.Listed && slices.ContainsFunc(d.Processes, func(g snapshot.GPUProcess) bool { return g.PID == int(p.Process.PID) })
		}
		a.missing(p.Process, r.Devices, listed)
		if !slices.Contains(listed, true) {
			continue
		}
		for i := range r.Devices {
			if listed[i] {
				a.advance(p, r, i)
			}
		}
		delete(a.suspects, p.Process)
	}
}

// contextGone is how many readings in a row must not list a living process on a
// GPU before its context there counts as gone: one may fall between the end of
// the context and that of the process, whose last figures stay.
const contextGone = 2

// missing takes note of the devices that answered and do not list a process.
// Before its account begins it holds nothing yet, so everything will be seen;
// later, its context is gone, and what the driver said of it no longer holds.
// That can be told in the initial PID namespace only; elsewhere the driver may
// hide it.
func (a *Accounts) missing(p event.Process, devices []record.Device, listed []bool) {
	if !a.Initial {
		return
	}
	known := false
	for i, d := range devices {
		x := a.accounts[key{p, d.UUID}]
		known = known || listed[i] || x != nil
		switch {
		case x == nil:
		case listed[i]:
			x.unlisted = 0
		case d.Listed:
			if x.unlisted++; x.unlisted >= contextGone {
				delete(a.accounts, key{p, d.UUID})
			}
		}
	}
	if !known {
		a.empty[p] = true
	}
}

// advance takes the reading of one process on one device.
func (a *Accounts) advance(p *Process, r *record.Reading, device int) {
	k := key{p.Process, r.Devices[device].UUID}
	m := moment{unmatched: p.Unmatched}
	for _, u := range r.Uses {
		if u.Process == p.Process && u.Device == device {
			m.total, m.known, m.inferred = u.Bytes, u.Known, u.Inferred
		}
	}
	var rounding ledger.Rounding
	for _, h := range p.Holdings {
		if a.ordinals[p.Process][h.Device].uuid == k.uuid {
			m.tracked += h.Bytes
			rounding.Merge(h.Rounding)
		}
	}
	m.rounding = rounding.Bytes()
	x := a.accounts[k]
	if x == nil {
		x = &account{fromStart: p.FromStart || a.empty[p.Process]}
		a.accounts[k] = x
	}
	x.last = x.observe(m)
	x.grew(x.last.grew, a.suspects[p.Process])
	if p.Peak > x.peak || x.atPeak == nil {
		x.peak, x.atPeak = p.Peak, x.last.lines
	}
}

// Forget drops what is known of processes that are shown no more.
func (a *Accounts) Forget(processes ...event.Process) {
	for _, p := range processes {
		delete(a.ordinals, p)
		delete(a.empty, p)
		delete(a.suspects, p)
	}
	maps.DeleteFunc(a.accounts, func(k key, _ *account) bool { return slices.Contains(processes, k.process) })
}

// Stacks yields the stacks that growths are put under.
func (a *Accounts) Stacks(yield func(id uint64) bool) {
	for _, x := range a.accounts {
		for _, g := range x.growths {
			if !yield(g.Site.Stack) {
				return
			}
		}
	}
}

// A Statement is the account of a process on one GPU.
type Statement struct {
	snapshot.Account // but for PID and Process
	// Driver are the parts that no traced allocation asked for, of known
	// totals: synthetic frames of the profile, in use and at the peak.
	Driver []Part
	// Growths are parts of the driver's, by call site.
	Growths []Growth
}

// A Part is one line of an account.
type Part struct {
	Name        string
	Inuse, Peak int64 // bytes
}

// Statements returns the accounts of a process, in the driver's order of GPUs.
func (a *Accounts) Statements(p event.Process) (out []Statement) {
	for _, d := range a.devices {
		x := a.accounts[key{p, d.UUID}]
		if x == nil {
			continue
		}
		st := Statement{Account: snapshot.Account{GPU: d.Label, Total: x.last.total, Known: x.last.known, Inferred: x.last.inferred},
			Growths: slices.Clone(x.growths)}
		for i, l := range x.last.lines {
			peak := int64(0)
			if i < len(x.atPeak) {
				peak = x.atPeak[i].Bytes
			}
			if explained := x.explained(); l.Name == LineContext && explained != 0 {
				st.Lines = append(st.Lines, snapshot.AccountLine{Name: LineGrowth, Bytes: explained, Inferred: true, Note: noteGrowth})
				l.Bytes -= explained
			}
			st.Lines = append(st.Lines, l)
			if l.Name != LineTracked && x.last.known {
				st.Driver = append(st.Driver, Part{l.Name, l.Bytes, peak})
			}
		}
		out = append(out, st)
	}
	return out
}

// GPUs returns every GPU's memory and who is on it, as last read.
func (a *Accounts) GPUs() (out []snapshot.GPUMemory) {
	for _, d := range a.devices {
		if d.MemoryKnown {
			out = append(out, snapshot.GPUMemory{GPU: d.Label, Name: d.Name, Total: d.Total, Used: d.Used, Free: d.Free, Processes: d.Processes})
		}
	}
	return out
}
