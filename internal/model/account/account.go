// Package account compares what the kernel driver reports for each process on
// each GPU (NVML) with what the process was seen to take. It is pure: readings go
// in, figures come out.
//
// What a process holds on a GPU is the sum of the physical layer, where that sees
// the process's calls. NVML's figure is then the check beside it:
//
//   - traced from its start, the two are equal. A difference is counted, and shown,
//     and nothing is made up to close it;
//   - attached late, the difference is what was allocated before.
//
// Where the physical layer does not see a process, what NVML's figure has beyond the
// traced allocations is all that is known of the rest.
package account

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Accounts are all processes on all GPUs.
type Accounts struct {
	// Initial: the driver lists every process, see record.Trace.
	Initial bool

	devices  []record.Device // as last read
	rest     map[string]Rest // by label, as of that reading
	figures  map[key]*Figure
	ordinals map[event.Process]map[int32]gpu
	// empty are processes that were seen to hold nothing.
	empty map[event.Process]bool
	left  []event.Process // see Left
	lost  *loss.Set
}

type key struct {
	process event.Process
	label   string
}

type gpu struct{ uuid, label string }

// A Figure is what NVML says of a process on a GPU.
type Figure struct {
	Total    int64 // bytes, if Known
	Known    bool
	Inferred bool // it is the whole GPU's, on which this is the only process
	// Before is what of it was not seen to be allocated: before the trace, or, where
	// the physical layer does not see the process, by the driver for itself. It is
	// less than nothing if more was freed since than is known.
	Before int64
	// Differs is by how much Total was more than what the process was seen to
	// take, when both were of one moment (Compared).
	Differs  int64
	Compared bool
}

var causes loss.Causes

var lossDiffers = causes.Add("driver_total_differs", "readings in which the driver's total of a process was not what the process was seen to take, or, of one that was attached to late, was less")

// New returns Accounts that no reading was made for.
func New() *Accounts {
	return &Accounts{figures: map[key]*Figure{}, ordinals: map[event.Process]map[int32]gpu{},
		empty: map[event.Process]bool{}, lost: loss.New(causes)}
}

// Loss returns every cause of loss.
func (a *Accounts) Loss() []loss.Counter { return a.lost.Counters() }

// A Process is what accounts must know of one.
type Process struct {
	Process   event.Process
	FromStart bool // traced before its first allocation
	Seen      bool // the physical layer sees its calls
	// Since is when it was first known to be traced, Changed when what it holds
	// changed last, as record.Reading.Begin.
	Since, Changed uint64
	GPUs           []physical.GPU
	// Held is in bytes, by GPUs: all of it if Seen, else its allocations.
	Held []int64
	// Allocated is what the allocations of one that is Seen hold on GPUs of its own.
	Allocated     []int64
	AllocatedGPUs []physical.GPU
}

// Label returns the label of the GPU that a process calls ordinal, and whether
// it is known.
func (a *Accounts) Label(p event.Process, ordinal int32) (string, bool) {
	g, ok := a.ordinals[p][ordinal]
	return g.label, ok
}

// LabelOf returns the label of a device that a process had the kernel driver
// open, and whether it is known.
func (a *Accounts) LabelOf(p event.Process, g *physical.GPU) (string, bool) {
	if d := a.device(p, g); d != nil {
		return d.Label, true
	}
	return "", false
}

// device returns the device that a process had the kernel driver open, nil if that is
// not known. What NVML does not call as the kernel driver does goes by its ordinal;
// with event.NoDevice that is the only one that the process uses.
func (a *Accounts) device(p event.Process, g *physical.GPU) *record.Device {
	i := slices.IndexFunc(a.devices, func(d record.Device) bool {
		return g.Known && d.GPUKnown && d.GPU == g.ID && d.Instance == g.Instance
	})
	if i < 0 {
		known, ok := a.ordinals[p][g.Ordinal]
		i = slices.IndexFunc(a.devices, func(d record.Device) bool {
			return ok && d.UUID == known.uuid && !(g.Known && d.GPUKnown && d.GPU != g.ID)
		})
	}
	if i < 0 {
		return nil
	}
	return &a.devices[i]
}

// of tells whether d is a GPU, or an instance of it.
func of(gpu, d *record.Device) bool {
	return d.UUID == gpu.UUID || d.GPUKnown && gpu.GPUKnown && d.GPU == gpu.GPU
}

// FromStart tells whether a process that was attached to late is known to have
// held nothing by then.
func (a *Accounts) FromStart(p event.Process) bool { return a.empty[p] }

// Figure returns what NVML says of a process on the GPU with a label, nil for
// nothing.
func (a *Accounts) Figure(p event.Process, label string) *Figure { return a.figures[key{p, label}] }

// Labels returns the labels of all GPUs that NVML says a process is on.
func (a *Accounts) Labels(p event.Process) (out []string) {
	for i := range a.devices {
		if label := a.devices[i].Label; a.figures[key{p, label}] != nil {
			out = append(out, label)
		}
	}
	return out
}

// Observe takes a reading, and compares it with processes as they are at its
// moment. It returns of which of them a label or a figure is another by it; all says so of
// every process.
func (a *Accounts) Observe(r *record.Reading, processes []Process) (changed []event.Process, all bool) {
	all = !slices.EqualFunc(a.devices, r.Devices, sameDevice)
	a.devices = r.Devices
	changed = a.number(r, processes)
	a.left = nil
	for i := range processes {
		p := &processes[i]
		listed, was := false, len(a.Labels(p.Process)) > 0 && !a.gone(p.Process)
		for j := range r.Devices {
			d := &r.Devices[j]
			on := slices.ContainsFunc(d.Processes, func(g snapshot.GPUProcess) bool { return g.PID == int(p.Process.PID) })
			listed = listed || on
			switch {
			case on:
				if a.compare(p, r, j) {
					changed = append(changed, p.Process)
				}
			case d.Listed && a.Initial:
				// It has no context any more. Its physical memory and its pools can outlive
				// that, and the driver lists them under no process, so 0 is not compared.
				// Elsewhere the driver may hide the process.
				for x := range r.Devices {
					if k := (key{p.Process, r.Devices[x].Label}); a.figures[k] != nil && of(d, &r.Devices[x]) {
						if *a.figures[k] != (Figure{Known: true}) {
							changed = append(changed, p.Process)
						}
						a.figures[k] = &Figure{Known: true}
					}
				}
			}
		}
		// Of an instance only the whole GPU tells.
		everywhere := !slices.ContainsFunc(r.Devices, func(d record.Device) bool { return !d.Listed && d.Instance < 0 })
		if was && !listed && a.Initial && everywhere {
			a.left = append(a.left, p.Process)
		}
		if !listed && a.Initial && everywhere && p.Since <= r.Begin && len(a.Labels(p.Process)) == 0 && !a.empty[p.Process] {
			a.empty[p.Process] = true
			changed = append(changed, p.Process)
		}
	}
	uses := map[event.Process][]record.Use{}
	for _, u := range r.Uses {
		if u.Device >= 0 && u.Device < len(r.Devices) {
			uses[u.Process] = append(uses[u.Process], u)
		}
	}
	a.rest = map[string]Rest{}
	for j := range r.Devices {
		a.rest[r.Devices[j].Label] = a.remains(&r.Devices[j], processes, uses)
	}
	return changed, all
}

// sameDevice tells whether two readings' devices are one, under the same names.
func sameDevice(a, b record.Device) bool {
	return a.UUID == b.UUID && a.Label == b.Label && a.GPU == b.GPU && a.GPUKnown == b.GPUKnown && a.Instance == b.Instance
}

// A Rest is what of a GPU's memory in use no traced process holds, in bytes, if Known.
type Rest struct {
	Bytes int64
	Known bool
}

// Rests returns those of the last reading, by label: all its figures are of one moment.
func (a *Accounts) Rests() map[string]Rest { return a.rest }

// remains takes off what of d is in use what NVML says of processes in the same reading.
// That is not known where NVML does not say it of one that is seen to hold memory there,
// nor of an instance, whose processes are listed on the whole GPU.
func (a *Accounts) remains(d *record.Device, processes []Process, uses map[event.Process][]record.Use) Rest {
	out := Rest{d.Used, d.MemoryKnown && d.Instance < 0}
	for i := range processes {
		p := &processes[i]
		told := false
		for _, u := range uses[p.Process] {
			if of(d, &a.devices[u.Device]) {
				told = true
				out.Bytes -= u.Bytes
				out.Known = out.Known && u.Known && !u.Inferred
			}
		}
		for j := range p.GPUs {
			on := a.device(p.Process, &p.GPUs[j])
			out.Known = out.Known && (told || p.Held[j] == 0 || on != nil && !of(d, on))
		}
	}
	return out
}

// number takes the ordinals of the processes. Of others, which ended while the
// reading was made, nobody asks. It returns the processes of which one is another.
func (a *Accounts) number(r *record.Reading, processes []Process) (changed []event.Process) {
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
			told[o.Process] = known
		}
		d := &r.Devices[o.Device]
		known[o.Ordinal] = gpu{d.UUID, d.Label}
	}
	for id, known := range told {
		if known != nil && !maps.Equal(known, a.ordinals[id]) {
			a.ordinals[id] = known
			changed = append(changed, id)
		}
	}
	return changed
}

// compare takes the reading of one process on one device that lists it. What
// changed while it was read may be in the figure or not: nothing is concluded from
// it that is not new. It tells whether the figure is another by it.
func (a *Accounts) compare(p *Process, r *record.Reading, device int) (changed bool) {
	f := &Figure{}
	for _, u := range r.Uses {
		if u.Process == p.Process && u.Device == device {
			f.Total, f.Known, f.Inferred = u.Bytes, u.Known, u.Inferred
		}
	}
	held, label := a.held(p, &r.Devices[device])
	k := key{p.Process, label}
	old := a.figures[k]
	for x := range r.Devices {
		if of(&r.Devices[device], &r.Devices[x]) {
			one := key{p.Process, r.Devices[x].Label}
			changed = changed || one != k && a.figures[one] != nil
			delete(a.figures, one)
		}
	}
	a.figures[k] = f
	defer func() { changed = changed || old == nil || *old != *f }()
	if !f.Known {
		return changed
	}
	racing := p.Changed >= r.Begin
	switch {
	case p.Seen && (p.FromStart || a.empty[p.Process]):
		if f.Compared = !racing && !f.Inferred; f.Compared {
			f.Differs = f.Total - held
		}
		if f.Differs != 0 {
			a.lost.Add(lossDiffers, 1)
		}
	case racing && old != nil && old.Known:
		f.Before = old.Before
	default:
		f.Before = f.Total - held
		if !racing {
			a.short(p, &r.Devices[device], f.Total)
		}
	}
	return changed
}

// short counts where a process holds more on a device than the driver's total says.
func (a *Accounts) short(p *Process, d *record.Device, total int64) {
	held, _ := a.held(p, d)
	allocations := *p
	allocations.GPUs, allocations.Held = p.AllocatedGPUs, p.Allocated
	allocated, _ := a.held(&allocations, d)
	if max(held, allocated) > total {
		a.lost.Add(lossDiffers, 1)
	}
}

// gone tells whether the driver listed a process on no GPU any more.
func (a *Accounts) gone(p event.Process) bool {
	for i := range a.devices {
		if f := a.figures[key{p, a.devices[i].Label}]; f != nil && *f != (Figure{Known: true}) {
			return false
		}
	}
	return true
}

// Left returns the processes that the last reading was the first to list on no GPU.
func (a *Accounts) Left() []event.Process { return a.left }

// held returns what a process has on a whole GPU, and the label of that, or of the
// one instance of it that the process uses: NVML lists it on the whole GPU.
func (a *Accounts) held(p *Process, d *record.Device) (bytes int64, label string) {
	for i := range p.GPUs {
		on := a.device(p.Process, &p.GPUs[i])
		if on == nil || !of(d, on) {
			continue
		}
		bytes += p.Held[i]
		switch {
		case on.Instance < 0:
		case label == "" || label == on.Label:
			label = on.Label
		default:
			label = d.Label
		}
	}
	return bytes, cmp.Or(label, d.Label)
}

// Forget drops what is known of processes that are shown no more.
func (a *Accounts) Forget(processes ...event.Process) {
	for _, p := range processes {
		delete(a.ordinals, p)
		delete(a.empty, p)
	}
	if len(processes) > 0 {
		maps.DeleteFunc(a.figures, func(k key, _ *Figure) bool { return slices.Contains(processes, k.process) })
	}
}

// GPUs returns the memory of every GPU of which that is known and who is on it, as last
// read.
func (a *Accounts) GPUs() []snapshot.GPUMemory {
	return slices.DeleteFunc(a.Devices(), func(g snapshot.GPUMemory) bool { return g.Total == 0 })
}

// Devices returns every GPU, and every instance of one, as last read.
func (a *Accounts) Devices() (out []snapshot.GPUMemory) {
	for _, d := range a.devices {
		g := snapshot.GPUMemory{GPU: d.Label, Name: d.Name, Processes: d.Processes}
		if d.MemoryKnown {
			g.Total, g.Used, g.Free = d.Total, d.Used, d.Free
		}
		out = append(out, g)
	}
	return out
}
