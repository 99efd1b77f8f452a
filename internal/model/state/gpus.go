package state

import (
	"cmp"
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/model/account"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// gpus know on which GPU memory is, and how much of a process's memory was seen.
type gpus struct {
	config    *record.Trace
	processes *processes
	accounts  *account.Accounts
	physical  *physical.Ledger
	// later, if set, are those of a later moment, which know more.
	later *gpus
}

// unknownGPU is the label of memory on a GPU that is not known.
const unknownGPU = "unknown"

// GPU returns the label of the GPU that a call site of any layer is on, as far as it is
// known at this moment: the index that NVML shows, or without NVML the process's own
// ordinal, "unknown", or "" for memory on no GPU. See snapshot.Labels.
func (g *gpus) GPU(site *ledger.SiteKey) string {
	switch {
	case site.Kind.Class() == event.ClassHost:
		return ""
	case !inPhysicalLayer(site.Kind):
		return g.deviceLabel(site.Proc, site.Device)
	}
	label := g.physicalLabel(site)
	if label == unknownGPU && g.later != nil {
		return g.later.physicalLabel(site)
	}
	return label
}

// inPhysicalLayer reports whether memory of a kind is of the physical layer.
func inPhysicalLayer(k event.Kind) bool {
	return k.Class() == event.ClassDriver || k == event.KindSystem
}

// deviceLabel returns the label of a device, an ordinal of a process.
func (g *gpus) deviceLabel(id event.Process, device int32) string {
	if !g.config.NVML {
		if device == event.NoDevice {
			return unknownGPU
		}
		return fmt.Sprintf("cuda:%d", device)
	}
	label := ""
	if device != event.NoDevice {
		label = g.openedLabel(id, device)
	}
	if label == "" {
		label, _ = g.accounts.Label(id, device)
	}
	if label == "" && device == event.NoDevice {
		label = g.openedLabel(id, device)
	}
	if label == "" && g.later != nil {
		return g.later.deviceLabel(id, device)
	}
	return cmp.Or(label, unknownGPU)
}

// openedLabel returns the label of the GPU that the kernel driver's memory for a device is on, with
// event.NoDevice of the only one that the process has memory on; "" where nothing shows it. It is
// better evidence than NVML's list, which lacks a GPU that a process has no context on.
func (g *gpus) openedLabel(id event.Process, device int32) (label string) {
	all := g.physical.GPUs(id)
	for i := range all {
		other, ok := g.accounts.LabelOf(id, &all[i])
		switch {
		case !ok || device != event.NoDevice && all[i].Ordinal != device:
		case label != "" && label != other:
			return unknownGPU
		default:
			label = other
		}
	}
	return label
}

// physicalLabel returns the label of a site of the physical layer, whose Device is an
// index into the process's GPUs.
func (g *gpus) physicalLabel(site *ledger.SiteKey) string {
	all := g.physical.GPUs(site.Proc)
	if site.Device < 0 || int(site.Device) >= len(all) {
		return unknownGPU
	}
	gpu := &all[site.Device]
	label, known := g.accounts.LabelOf(site.Proc, gpu)
	switch {
	case known:
		return label
	case g.config.NVML:
		return unknownGPU
	case gpu.Ordinal != event.NoDevice:
		return fmt.Sprintf("cuda:%d", gpu.Ordinal)
	case gpu.Known:
		return fmt.Sprintf("%04x:%02x:%02x.0", gpu.ID>>16, gpu.ID>>8&0xff, gpu.ID&0xff)
	}
	return unknownGPU
}

// onDevice is part of a process's figures on one of its devices.
type onDevice struct {
	id     event.Process
	device int32
	gpu    string // label
}

func (x *onDevice) process() event.Process { return x.id }

func (x *onDevice) locate(g *gpus) { x.gpu = g.deviceLabel(x.id, x.device) }

// locateAll adds on which GPUs devices are.
func locateAll[T any, P interface {
	*T
	locate(*gpus)
}](g *gpus, all []T) {
	for i := range all {
		P(&all[i]).locate(g)
	}
}

// onlyOne reports whether a process uses one GPU, and e concerns that GPU.
func (g *gpus) onlyOne(e *event.Event) bool {
	labels := g.accounts.Labels(e.Proc)
	if len(labels) != 1 || len(g.physical.GPUs(e.Proc)) > 1 {
		return false
	}
	label, known := g.accounts.Label(e.Proc, e.Device)
	return !known || label == labels[0]
}

// SeesDriverCalls reports whether the physical layer sees the calls of a process to the kernel driver.
// If so, it has all memory that the kernel driver hands out to it. This is assumed of a process that was
// attached to late, even before its first call is seen. Of another process only the allocations are known,
// and NVML's figure.
func (g *gpus) SeesDriverCalls(id event.Process) bool {
	known := g.processes.known[id]
	return g.config.Physical && (known != nil && !known.fromStart || g.physical.Seen(id))
}

// AttachedLate reports whether a process was attached to when it may have held memory already.
func (g *gpus) AttachedLate(id event.Process) bool {
	known := g.processes.known[id]
	return known == nil || !known.fromStart && !g.accounts.FromStart(id)
}

// Unseen yields how many bytes a process holds on each GPU that were not seen allocated, as
// far as NVML's figures of this moment show: see account.Figure. Of a process that was seen
// from its start it yields nothing.
func (g *gpus) Unseen(id event.Process, yield func(gpu string, bytes int64)) {
	if g.SeesDriverCalls(id) && !g.AttachedLate(id) {
		return
	}
	for _, gpu := range g.accounts.Labels(id) {
		if f := g.accounts.Figure(id, gpu); f.Known {
			yield(gpu, f.Before)
		}
	}
}
