package ledger

import (
	"iter"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// maxDevices bounds the devices of one process that are told apart.
const maxDevices = 256

// deviceUnknown is the first entry of process.devices: what is on no device
// that is known, or on one beyond maxDevices.
const deviceUnknown uint32 = 0

// A Holding is the owned memory that a process has in use on one device.
type Holding struct {
	Device int32 // event.NoDevice for what is on none that is known
	Bytes  int64 // the InuseBytes of its sites of class device, or driver
}

// Holdings returns proc's holding on each device that an allocation call of it
// named, empty ones too, and on no known device if that is not empty. Its cost does
// not depend on the number of allocations or sites.
func (l *Ledger) Holdings(proc event.Process) iter.Seq[Holding] {
	return func(yield func(Holding) bool) {
		p := l.procs[proc]
		if p == nil {
			return
		}
		for i, h := range p.devices {
			if uint32(i) == deviceUnknown && h.Bytes == 0 {
				continue
			}
			if !yield(h) {
				return
			}
		}
	}
}

// deviceAt returns the index of device in p.devices, made if there is room.
func (l *Ledger) deviceAt(p *process, device int32) uint32 {
	if device == event.NoDevice {
		return deviceUnknown
	}
	i := slices.IndexFunc(p.devices, func(h Holding) bool { return h.Device == device })
	switch {
	case i >= 0:
		return uint32(i)
	case len(p.devices) > maxDevices:
		l.loss.Add(lossDevices, 1)
		return deviceUnknown
	}
	p.devices = append(p.devices, Holding{Device: device})
	return uint32(len(p.devices) - 1)
}

// place puts s, with what it holds, on the device that it names.
func (l *Ledger) place(p *process, s *Site) {
	if !onDevice(s.Kind) {
		return
	}
	to := l.deviceAt(p, s.Device)
	p.devices[s.device].Bytes -= s.InuseBytes
	p.devices[to].Bytes += s.InuseBytes
	s.device = to
}

// onDevice tells whether memory of kind k lies on a device.
func onDevice(k event.Kind) bool {
	return k.Class() == event.ClassDevice || k.Class() == event.ClassDriver
}

// holdRow changes what of s has a row: by n allocations of the weight w, or with both
// negative by the end of as many.
func (l *Ledger) holdRow(p *process, s *Site, n int, w Weight) {
	l.addRows(p, n)
	l.hold(p, s, w)
}

// hold changes what s has in use, and so the totals of its process and of its
// device. Every change of memory in use goes through here.
//
// A new peak means that each site's PeakBytes is now its InuseBytes. Instead
// of visiting all sites, hold starts a new epoch; a site of an older epoch
// takes its InuseBytes over just before they change, or when it is read.
func (l *Ledger) hold(p *process, s *Site, w Weight) {
	bytes := w.Bytes
	p.settle(s)
	s.InuseObjects += w.Objects
	s.InuseBytes += bytes
	s.FreedObjects += max(-w.Objects, 0)
	s.FreedBytes = addSaturated(s.FreedBytes, uint64(max(-bytes, 0)))
	p.sums.LiveObjects += w.Objects
	class := s.Kind.Class()
	p.inuse[class] += bytes
	if !onDevice(s.Kind) {
		return
	}
	p.devices[s.device].Bytes += bytes
	if class == event.ClassDevice && p.inuse[class] > p.sums.Peak {
		p.sums.Peak = p.inuse[class]
		p.epoch++
		if l.opt.Peaked != nil {
			l.opt.Peaked(p.id)
		}
	}
}

// Mark makes what each site of proc holds its PeakBytes: the moment is one of
// another ledger's peak (Options.Peaked). Memory of class driver has none of its own.
func (l *Ledger) Mark(proc event.Process) {
	if p := l.procs[proc]; p != nil {
		l.touched(p)
		p.epoch++
	}
}

// settle brings s's PeakBytes up to the epoch.
func (p *process) settle(s *Site) {
	if s.epoch != p.epoch {
		s.PeakBytes = s.InuseBytes
		s.epoch = p.epoch
	}
}
