package ledger

import (
	"iter"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
)

// maxDevices bounds the devices of one process that are told apart.
const maxDevices = 256

// deviceUnknown is the first entry of process.devices: what is on no device
// that is known, or on one beyond maxDevices.
const deviceUnknown uint32 = 0

// A Holding is the owned memory that a process has in use on one device.
type Holding struct {
	Device int32 // event.NoDevice for what is on none that is known
	Bytes  int64 // the InuseBytes of class device of its sites
	// Rounding is of the live allocations in Bytes that the driver rounds one
	// by one and that have a row.
	Rounding Rounding
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
	if s.Kind.Class() != event.ClassDevice {
		return
	}
	to := l.deviceAt(p, s.Device)
	p.devices[s.device].move(-1, s)
	p.devices[to].move(1, s)
	s.device = to
}

// move adds what s holds to h, or with sign -1 takes it away.
func (h *Holding) move(sign int64, s *Site) {
	h.Bytes += sign * s.InuseBytes
	h.Rounding.large += sign * s.rounding.large
	h.Rounding.small += sign * s.rounding.small
}

// holdRow changes what of s has a row: by an allocation of so many bytes, or
// with both negative by the end of one.
func (l *Ledger) holdRow(p *process, s *Site, objects int, bytes int64) {
	l.addRows(p, objects)
	p.hold(s, int64(objects), bytes)
	if rounds(s.Kind) {
		s.rounding.add(bytes)
		p.devices[s.device].Rounding.add(bytes)
	}
}

// hold changes what s has in use, and so the totals of its process and of its
// device. Every change of memory in use goes through here.
//
// A new peak means that each site's PeakBytes is now its InuseBytes. Instead
// of visiting all sites, hold starts a new epoch; a site of an older epoch
// takes its InuseBytes over just before they change, or when it is read.
func (p *process) hold(s *Site, objects, bytes int64) {
	p.settle(s)
	s.InuseObjects += objects
	s.InuseBytes += bytes
	p.sums.LiveObjects += objects
	class := s.Kind.Class()
	p.inuse[class] += bytes
	if class != event.ClassDevice {
		return
	}
	p.devices[s.device].Bytes += bytes
	if p.inuse[class] > p.sums.Peak {
		p.sums.Peak = p.inuse[class]
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

// granule is the unit of GPU memory that the kernel driver hands out, in bytes.
const granule = 2 << 20

// Rounding adds up the memory that the kernel driver gave beyond what was asked for.
//
// Sizes from one granule are rounded up to whole ones; smaller ones share
// granules (on driver 580, 24 allocations of one byte grew a process by one).
// For those Bytes is the least that it can be: what they waste beyond that shows
// under context and driver.
type Rounding struct {
	large int64 // slack of sizes of a granule and more
	small int64 // bytes of smaller ones
}

// rounds tells whether the driver rounds each allocation of kind k. That of
// stream-ordered ones is their pool's, which has a reserve of its own.
func rounds(k event.Kind) bool {
	return k.Class() == event.ClassDevice && k != event.KindAsync
}

// add counts an allocation of so many bytes, or with as many negative ones its
// end.
func (r *Rounding) add(bytes int64) {
	switch {
	case bytes >= granule:
		r.large += slack(bytes)
	case bytes <= -granule:
		r.large -= slack(-bytes)
	default:
		r.small += bytes
	}
}

// Merge adds what another one counted.
func (r *Rounding) Merge(other Rounding) {
	r.large += other.large
	r.small += other.small
}

// Bytes is the slack of all that was added.
func (r *Rounding) Bytes() int64 { return r.large + slack(r.small) }

func slack(n int64) int64 {
	return (granule - n%granule) % granule
}
