package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// A SiteKey is what the allocations of one Site have in common.
type SiteKey struct {
	Proc   event.Process
	Stack  uint64 // 0 when the event had none, or for a synthetic site
	API    uint16
	Outer  uint16
	Kind   event.Kind
	Device int32 // event.NoDevice for host memory, or when not known
	// Ctx is the context when the device is not known and the context is: 0
	// otherwise.
	Ctx uint64
}

// A Site is one call site's memory. Two Sites may have the same key, when
// their device became known at different times: add them up.
type Site struct {
	SiteKey
	// A Synthetic site has what found no room, by kind: beyond MaxSites all
	// figures of a call, beyond MaxLive what is in use alone.
	Synthetic bool

	Counts
	// What of Counts was there at the last Reported.
	ReportedObjects, ReportedBytes int64
	// PeakBytes were in use at the process's peak: of memory on GPUs the one of the process
	// (see Options.Peaked), of other memory the highest total of its class.
	PeakBytes                int64
	InuseObjects, InuseBytes int64

	// HasTensors: tensors were handed out of its memory once. Package tensors sets it.
	HasTensors bool

	fetched Counts // see FetchCounts
	reports uint64 // how many Reported there were, as far as is updated; see siteTable.updateReported
	last    uint64 // time of the latest allocation call, failed ones too
	epoch   uint64 // of PeakBytes; see siteTable.updatePeak
	index   uint32 // in siteTable.all
	device  uint32 // index into siteTable.devices, for memory on a device
}

// Counts are the figures of a Site that only rise. What ended by the end of its process
// counts as freed, too.
type Counts struct {
	AllocObjects, AllocBytes   int64
	FreedObjects, FreedBytes   int64
	FailedObjects, FailedBytes int64
}

// Add adds o to c, up to the largest int64.
func (c *Counts) Add(o *Counts) {
	for _, x := range []struct{ to, by *int64 }{
		{&c.AllocObjects, &o.AllocObjects}, {&c.AllocBytes, &o.AllocBytes}, {&c.FreedObjects, &o.FreedObjects},
		{&c.FreedBytes, &o.FreedBytes}, {&c.FailedObjects, &o.FailedObjects}, {&c.FailedBytes, &o.FailedBytes},
	} {
		*x.to = addSaturated(*x.to, uint64(*x.by))
	}
}

// FetchCounts returns what s counted since its last call: for counters that last longer than
// call sites.
func (s *Site) FetchCounts() Counts {
	now, old := s.Counts, s.fetched
	s.fetched = now
	return Counts{
		now.AllocObjects - old.AllocObjects, now.AllocBytes - old.AllocBytes, now.FreedObjects - old.FreedObjects,
		now.FreedBytes - old.FreedBytes, now.FailedObjects - old.FailedObjects, now.FailedBytes - old.FailedBytes,
	}
}

// HasUnfetchedCounts returns whether FetchCounts would return anything.
func (s *Site) HasUnfetchedCounts() bool { return s.Counts != s.fetched }

// Unreported returns what was allocated after the last Reported.
func (s *Site) Unreported() (objects, bytes int64) {
	return s.AllocObjects - s.ReportedObjects, s.AllocBytes - s.ReportedBytes
}

// Empty returns whether all figures of s are zero.
func (s *Site) Empty() bool {
	return s.AllocObjects == 0 && s.AllocBytes == 0 && s.PeakBytes == 0 && s.InuseObjects == 0 && s.InuseBytes == 0 &&
		s.FailedObjects == 0 && s.FailedBytes == 0
}

// resetCounts makes what s counts begin at zero.
func (s *Site) resetCounts() {
	s.Counts, s.fetched, s.ReportedObjects, s.ReportedBytes = Counts{}, Counts{}, 0, 0
}

// called records the time of a call at s.
func (s *Site) called(at uint64) { s.last = max(s.last, at) }

// siteKey is a SiteKey inside one process.
type siteKey struct {
	stack, ctx uint64
	device     int32
	api, outer uint16
	kind       event.Kind
}

func (s *Site) key() siteKey {
	return siteKey{stack: s.Stack, ctx: s.Ctx, device: s.Device, api: s.API, outer: s.Outer, kind: s.Kind}
}
