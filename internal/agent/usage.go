package agent

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// ownMemory is what this process has in memory, in bytes.
type ownMemory struct {
	resident int64
	garbage  int64 // Go's, which a collection frees, and what Go keeps for later
	other    int64 // not Go's
}

// The figures of Go's runtime about its memory.
const (
	goTotal = iota
	goReleased
	goObjects
	goLive
	goFree
	goNumbers
)

var goNames = [goNumbers]string{
	goTotal:    "/memory/classes/total:bytes",
	goReleased: "/memory/classes/heap/released:bytes",
	goObjects:  "/memory/classes/heap/objects:bytes",
	goLive:     "/gc/heap/live:bytes",
	goFree:     "/memory/classes/heap/free:bytes",
}

func readMemory() (m ownMemory, err error) {
	samples := make([]metrics.Sample, goNumbers)
	for i, name := range goNames {
		samples[i].Name = name
	}
	metrics.Read(samples)
	var numbers [goNumbers]int64
	for i := range samples {
		numbers[i] = int64(samples[i].Value.Uint64())
	}
	resident, err := proc.Resident()
	return memoryOf(resident, numbers), err
}

// memoryOf divides what this process has in memory by the figures of Go's runtime.
func memoryOf(resident int64, numbers [goNumbers]int64) ownMemory {
	return ownMemory{
		resident: resident,
		garbage:  max(numbers[goObjects]-numbers[goLive], 0) + numbers[goFree],
		other:    max(resident-(numbers[goTotal]-numbers[goReleased]), 0),
	}
}

// needed is what the process cannot do without.
func (m ownMemory) needed() int64 { return max(m.resident-m.garbage, 0) }

// OwnMemory returns what this process has in memory and cannot do without, in bytes.
func OwnMemory() (int64, error) {
	m, err := readMemory()
	return m.needed(), err
}

// A collecting measures how much of the processor time is of Go's garbage collector, and has it
// collect less often while the processor is short.
type collecting struct {
	all, collector time.Duration
	usual          int // the collector's percentage before it was made rare, 0 while it is not rare
}

// rareCollection is the collector's percentage while the processor is short. The usual one takes
// up to four times as much of the processor, and less memory.
const rareCollection = 100

// spare makes collection rare from when the load is above its limit until it is well below. The
// limit of memory holds all the same (collectWithin). Both are in cores; the limit is 0 for none,
// and the load NaN if it is not known.
func (c *collecting) spare(load, limit float64) {
	switch {
	case limit > 0 && load > limit*cpuHigh && c.usual == 0:
		if c.usual = debug.SetGCPercent(rareCollection); c.usual < 0 || c.usual > rareCollection { // GOGC asked for less yet
			debug.SetGCPercent(c.usual)
			c.usual = 0
		}
	case (limit <= 0 || load < limit*cpuLow) && c.usual != 0:
		debug.SetGCPercent(c.usual)
		c.usual = 0
	}
}

// factor is by how much to multiply processor time that was measured since the last call,
// for the time of the collector: it collects the garbage of all work alike.
func (c *collecting) factor() float64 {
	var r syscall.Rusage
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	if metrics.Read(sample); syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 1
	}
	all, collector := c.all, c.collector
	c.all = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	c.collector = time.Duration(sample[0].Value.Float64() * float64(time.Second))
	all, collector = c.all-all, c.collector-collector
	if all <= 0 || collector <= 0 {
		return 1
	}
	// The two are not of the same moment, and never say that nothing else was done.
	return 1 / (1 - min(float64(collector)/float64(all), 0.75))
}

// collectWithin has Go collect garbage so that the process keeps to a limit, 0 for none.
// It leaves room above what is shed at, for garbage.
func collectWithin(limit int64) {
	if limit == 0 {
		debug.SetMemoryLimit(math.MaxInt64)
		return
	}
	m, err := readMemory()
	if err != nil {
		return // nothing is known
	}
	debug.SetMemoryLimit(max(limit/10*9-m.other, limit/4))
}
