// Package account compares the kernel driver's figure (NVML) for each process on each GPU
// with the memory that the process was seen to get. It is pure: readings go in, figures
// come out.
//
// A process holds the sum of the physical layer on a GPU, if that layer sees its calls. The
// invariant: for a process that was traced from its start, NVML's figure is the same, and a
// difference is counted and shown, never hidden. For a process that was attached late, the
// difference is what it allocated before. If the physical layer does not see a process, all
// that is known of the rest is how much NVML's figure exceeds the traced allocations.
package account

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Accounts are the figures of all processes on all GPUs.
type Accounts struct {
	// Initial: the driver lists every process, see record.Trace.
	Initial bool

	devices  []record.Device                      // as last read
	rest     map[string]Rest                      // by label, of that reading
	figures  map[event.Process]map[string]*Figure // by label
	ordinals map[event.Process]map[int32]gpu
	// empty are processes that were seen to hold nothing.
	empty map[event.Process]bool
	left  []event.Process // see NewlyUnlisted
	lost  *loss.Set
}

type gpu struct{ uuid, label string }

// A Figure is what NVML says of a process on a GPU.
type Figure struct {
	Total    int64 // bytes, if Known
	Known    bool
	Inferred bool // it is the whole GPU's, on which this is the only process
	// Before is the part of it that was not seen allocated: from before the trace, or, if
	// the physical layer does not see the process, by the driver for itself. It is negative
	// if more was freed since than is known.
	Before int64
	// Difference is Total less what the process was seen to get, when both were of one moment
	// (Compared).
	Difference int64
	Compared   bool
}

var causes loss.Causes

var lossDiffers = causes.Add("driver_total_differs", "readings in which the driver's total for a process differed from the memory that the process was seen to take (after a late attach: was less than it)")

// New returns Accounts that no reading was made for.
func New() *Accounts {
	return &Accounts{figures: map[event.Process]map[string]*Figure{}, ordinals: map[event.Process]map[int32]gpu{},
		empty: map[event.Process]bool{}, lost: loss.New(causes)}
}

// Loss returns every cause of loss.
func (a *Accounts) Loss() []loss.Counter { return a.lost.Counters() }

// A Process is what accounts must know of a process.
type Process struct {
	Process   event.Process
	FromStart bool // traced before its first allocation
	Seen      bool // the physical layer sees its calls
	// Since is when it was first known to be traced, Changed when its memory changed last,
	// as record.Reading.Begin.
	Since, Changed uint64
	GPUs           []physical.GPU
	// Bytes is in bytes, by GPUs: all its memory if Seen, else its allocations.
	Bytes []int64
	// Allocated is in bytes, by AllocatedGPUs: the allocations of a process that is Seen.
	Allocated     []int64
	AllocatedGPUs []physical.GPU

	on   []*record.Device // by GPUs, nil where it is not known; Observe sets it and uses
	uses []record.Use
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
// not known. A device whose number NVML does not report is found by its ordinal; with
// event.NoDevice that is the only one that the process uses.
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

// devicesOf returns the devices that a process had the kernel driver open, nil where that is not known.
func (a *Accounts) devicesOf(p event.Process, gpus []physical.GPU) []*record.Device {
	out := make([]*record.Device, len(gpus))
	for i := range gpus {
		out[i] = a.device(p, &gpus[i])
	}
	return out
}

// sameGPU returns whether d is a GPU, or an instance of it.
func sameGPU(gpu, d *record.Device) bool {
	return d.UUID == gpu.UUID || d.GPUKnown && gpu.GPUKnown && d.GPU == gpu.GPU
}

// FromStart returns whether a process that was attached to late is known to have had no
// memory by then.
func (a *Accounts) FromStart(p event.Process) bool { return a.empty[p] }

// Figure returns what NVML says of a process on the GPU with a label, nil if it says
// nothing.
func (a *Accounts) Figure(p event.Process, label string) *Figure { return a.figures[p][label] }

// Labels returns the labels of all GPUs that NVML says a process is on.
func (a *Accounts) Labels(p event.Process) (out []string) {
	figures := a.figures[p]
	for i := 0; i < len(a.devices) && len(figures) > 0; i++ {
		if label := a.devices[i].Label; figures[label] != nil {
			out = append(out, label)
		}
	}
	return out
}

// Observe compares a reading with processes as they are at its moment. It returns those
// whose label or figure changed by it; all means every process.
func (a *Accounts) Observe(r *record.Reading, processes []Process) (changed []event.Process, all bool) {
	all = !slices.EqualFunc(a.devices, r.Devices, sameDevice)
	a.devices = r.Devices
	changed = a.setOrdinals(r, processes)
	a.left = nil
	uses := map[event.Process][]record.Use{}
	for _, u := range r.Uses {
		if u.Device >= 0 && u.Device < len(r.Devices) {
			uses[u.Process] = append(uses[u.Process], u)
		}
	}
	pids := make([]map[int]bool, len(r.Devices)) // that a device lists
	for j := range r.Devices {
		pids[j] = map[int]bool{}
		for _, g := range r.Devices[j].Processes {
			pids[j][g.PID] = true
		}
	}
	for i := range processes {
		p := &processes[i]
		p.uses, p.on = uses[p.Process], a.devicesOf(p.Process, p.GPUs)
		listed, was := false, len(a.Labels(p.Process)) > 0 && !a.gone(p.Process)
		for j := range r.Devices {
			d := &r.Devices[j]
			on := pids[j][int(p.Process.PID)]
			listed = listed || on
			switch {
			case on:
				if a.compare(p, r, j) {
					changed = append(changed, p.Process)
				}
			case d.Listed && a.Initial && len(a.figures[p.Process]) > 0:
				// It has no context any more. Its physical memory and its pools can outlive
				// that, and the driver lists them under no process, so 0 is not compared.
				// Elsewhere the driver may hide the process.
				for x := range r.Devices {
					if f := a.figures[p.Process][r.Devices[x].Label]; f != nil && sameGPU(d, &r.Devices[x]) {
						if *f != (Figure{Known: true}) {
							changed = append(changed, p.Process)
						}
						a.figures[p.Process][r.Devices[x].Label] = &Figure{Known: true}
					}
				}
			}
		}
		// NVML lists the processes of an instance on the whole GPU.
		everywhere := !slices.ContainsFunc(r.Devices, func(d record.Device) bool { return !d.Listed && d.Instance < 0 })
		if was && !listed && a.Initial && everywhere {
			a.left = append(a.left, p.Process)
		}
		if !listed && a.Initial && everywhere && p.Since <= r.Begin && len(a.Labels(p.Process)) == 0 && !a.empty[p.Process] {
			a.empty[p.Process] = true
			changed = append(changed, p.Process)
		}
	}
	a.rest = map[string]Rest{}
	for j := range r.Devices {
		a.rest[r.Devices[j].Label] = a.restOf(&r.Devices[j], processes)
	}
	return changed, all
}

// sameDevice returns whether two readings' devices are one, under the same names.
func sameDevice(a, b record.Device) bool {
	return a.UUID == b.UUID && a.Label == b.Label && a.GPU == b.GPU && a.GPUKnown == b.GPUKnown && a.Instance == b.Instance
}

// A Rest is the memory in use on a GPU that no traced process holds, in bytes, if Known.
type Rest struct {
	Bytes int64
	Known bool
}

// Rests returns those of the last reading, by label: all its figures are of one moment.
func (a *Accounts) Rests() map[string]Rest { return a.rest }

// restOf subtracts what NVML says of processes from what is in use on d, in one reading.
// The result is not known if NVML says nothing of a process that is seen to hold memory
// there, nor for an instance, whose processes are listed on the whole GPU.
func (a *Accounts) restOf(d *record.Device, processes []Process) Rest {
	out := Rest{d.Used, d.MemoryKnown && d.Instance < 0}
	for i := range processes {
		p := &processes[i]
		listed := false
		for _, u := range p.uses {
			if sameGPU(d, &a.devices[u.Device]) {
				listed = true
				out.Bytes -= u.Bytes
				out.Known = out.Known && u.Known && !u.Inferred
			}
		}
		for j, on := range p.on {
			out.Known = out.Known && (listed || p.Bytes[j] == 0 || on != nil && !sameGPU(d, on))
		}
	}
	return out
}

// setOrdinals sets the ordinals of the processes, and not of others, which ended during
// the reading. It returns the processes whose ordinals changed.
func (a *Accounts) setOrdinals(r *record.Reading, processes []Process) (changed []event.Process) {
	ordinals := make(map[event.Process]map[int32]gpu, len(processes))
	for i := range processes {
		ordinals[processes[i].Process] = nil
	}
	for _, o := range r.Ordinals {
		if _, ours := ordinals[o.Process]; ours && o.Device >= 0 && o.Device < len(r.Devices) {
			d := &r.Devices[o.Device]
			keyed.Map(ordinals, o.Process)[o.Ordinal] = gpu{d.UUID, d.Label}
		}
	}
	for id, known := range ordinals {
		if known != nil && !maps.Equal(known, a.ordinals[id]) {
			a.ordinals[id] = known
			changed = append(changed, id)
		}
	}
	return changed
}

// compare compares the reading of one process on one device that lists it. A change during
// the reading may be in the figure or not: then it shows nothing new. It returns whether the
// figure changed.
func (a *Accounts) compare(p *Process, r *record.Reading, device int) (changed bool) {
	f := &Figure{}
	for _, u := range p.uses {
		if u.Device == device {
			f.Total, f.Known, f.Inferred = u.Bytes, u.Known, u.Inferred
		}
	}
	held, label := held(p, &r.Devices[device])
	figures := keyed.Map(a.figures, p.Process)
	old := figures[label]
	for x := range r.Devices {
		if sameGPU(&r.Devices[device], &r.Devices[x]) {
			one := r.Devices[x].Label
			changed = changed || one != label && figures[one] != nil
			delete(figures, one)
		}
	}
	figures[label] = f
	defer func() { changed = changed || old == nil || *old != *f }()
	if !f.Known {
		return changed
	}
	racing := p.Changed >= r.Begin
	switch {
	case p.Seen && (p.FromStart || a.empty[p.Process]):
		if f.Compared = !racing && !f.Inferred; f.Compared {
			f.Difference = f.Total - held
		}
		if f.Difference != 0 {
			a.lost.Add(lossDiffers, 1)
		}
	case racing && old != nil && old.Known:
		f.Before = old.Before
	default:
		f.Before = f.Total - held
		if !racing {
			a.countExcess(p, &r.Devices[device], f.Total)
		}
	}
	return changed
}

// countExcess counts a process that holds more on a device than the driver's total.
func (a *Accounts) countExcess(p *Process, d *record.Device, total int64) {
	all, _ := held(p, d)
	allocated, _ := held(&Process{on: a.devicesOf(p.Process, p.AllocatedGPUs), Bytes: p.Allocated}, d)
	if max(all, allocated) > total {
		a.lost.Add(lossDiffers, 1)
	}
}

// gone returns whether the driver listed a process on no GPU any more.
func (a *Accounts) gone(p event.Process) bool {
	figures := a.figures[p]
	for i := 0; i < len(a.devices) && len(figures) > 0; i++ {
		if f := figures[a.devices[i].Label]; f != nil && *f != (Figure{Known: true}) {
			return false
		}
	}
	return true
}

// NewlyUnlisted returns the processes that the last reading was the first to list on no GPU.
func (a *Accounts) NewlyUnlisted() []event.Process { return a.left }

// held returns what a process has on a whole GPU, and the label of that, or of the
// one instance of it that the process uses: NVML lists it on the whole GPU.
func held(p *Process, d *record.Device) (bytes int64, label string) {
	for i, on := range p.on {
		if on == nil || !sameGPU(d, on) {
			continue
		}
		bytes += p.Bytes[i]
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
		delete(a.figures, p)
	}
}

// GPUs returns the memory and the processes of every GPU whose memory is known, as last
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
