package ledger

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// maxDevices bounds the devices of one process that are told apart.
const maxDevices = 256

// deviceUnknown is the first entry of siteTable.devices: what is on no device
// that is known, or on one beyond maxDevices.
const deviceUnknown uint32 = 0

// A DeviceUse is the owned memory that a process has in use on one device.
type DeviceUse struct {
	Device int32 // event.NoDevice for what is on none that is known
	Bytes  int64 // the InuseBytes of its sites of class device, or driver
}

// deviceAt returns the index of device in t.devices, made if there is room.
func (t *siteTable) deviceAt(device int32) uint32 {
	if device == event.NoDevice {
		return deviceUnknown
	}
	i := slices.IndexFunc(t.devices, func(h DeviceUse) bool { return h.Device == device })
	switch {
	case i >= 0:
		return uint32(i)
	case len(t.devices) > maxDevices:
		t.p.loss.Add(lossDevices, 1)
		return deviceUnknown
	}
	t.devices = append(t.devices, DeviceUse{Device: device})
	return uint32(len(t.devices) - 1)
}

// assignDevice counts what s has in use on the device that it names.
func (t *siteTable) assignDevice(s *Site) {
	if !onDevice(s.Kind) {
		return
	}
	to := t.deviceAt(s.Device)
	t.devices[s.device].Bytes -= s.InuseBytes
	t.devices[to].Bytes += s.InuseBytes
	s.device = to
}

// onDevice returns whether memory of kind k lies on a device.
func onDevice(k event.Kind) bool {
	return k.Class() == event.ClassDevice || k.Class() == event.ClassDriver
}

// add changes what s has in use, and so the sums of its process and of its device, by
// what began, or with a negative tally by what ended. Every change of memory in use goes
// through here.
//
// A new peak means that each site's PeakBytes is now its InuseBytes. Instead
// of visiting all sites, add starts a new epoch; PeakBytes of a site of an older epoch
// become its InuseBytes just before these change, or when it is read.
func (t *siteTable) add(s *Site, w tally) {
	t.updatePeak(s)
	s.InuseObjects += w.objects
	s.InuseBytes += w.bytes
	s.FreedObjects += max(-w.objects, 0)
	s.FreedBytes = addSaturated(s.FreedBytes, uint64(max(-w.bytes, 0)))
	t.liveObjects += w.objects
	class := s.Kind.Class()
	t.inuse[class] += w.bytes
	if onDevice(s.Kind) {
		t.devices[s.device].Bytes += w.bytes
	}
	t.p.l.SiteChanged(s)
	if t.inuse[class] <= t.peak[class] {
		return
	}
	t.peak[class] = t.inuse[class]
	if peaked := t.p.l.opt.Peaked; !inTotal(class) {
		t.epoch[class]++
	} else if class == event.ClassDevice && (peaked == nil || peaked(t.p.id)) {
		t.markPeak()
	}
}

// inTotal returns whether memory of a class is part of what a process holds on GPUs.
func inTotal(c event.Class) bool {
	return c == event.ClassDevice || c == event.ClassDriver || c == event.ClassTensor
}

// markPeak makes what each site holds on GPUs its PeakBytes.
func (t *siteTable) markPeak() {
	for class := range t.epoch {
		if inTotal(event.Class(class)) {
			t.epoch[class]++
		}
	}
}

// updatePeak brings s's PeakBytes up to the epoch.
func (t *siteTable) updatePeak(s *Site) {
	if epoch := t.epoch[s.Kind.Class()]; s.epoch != epoch {
		s.PeakBytes = s.InuseBytes
		s.epoch = epoch
	}
}
