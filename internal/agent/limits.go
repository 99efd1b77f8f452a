package agent

import (
	"fmt"
	"math"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A Usage is what the agent took of the machine by some moment.
type Usage struct {
	CPU time.Duration // since it began
	// Memory is bytes that are resident, but for garbage: what it cannot do without.
	Memory int64
}

// Bounds are the limits that the agent keeps to, 0 for none.
type Bounds struct {
	Memory int64   // bytes
	CPU    float64 // cores
}

const (
	// Memory sheds at so much of its limit, and is well at so much; the processor
	// likewise. What is above is for garbage: with less room Go collects it more often,
	// and who reads events waits.
	memoryHigh, memoryLow = 0.7, 0.55
	cpuHigh, cpuLow       = 1.0, 0.5
	// cpuOver is how often in a row the processor must be above its limit.
	cpuOver = 2
	// What was shed comes back when all was well for restMin; for twice as long each
	// time that it did not last restMin, up to restMax.
	restMin, restMax = time.Minute, time.Hour
)

// A limiter decides what is shed. It is pure: it knows the time and the usage by what it
// is told.
type limiter struct {
	steps []probes.Shed // from one to the next more is shed
	step  int
	shed  probes.Shed // steps[step]
	why   string      // sentence on what is shed, "" for nothing

	told  bool // before and at are
	at    time.Duration
	usage Usage
	over  int           // observations in a row above the limit of the processor
	well  time.Duration // since when all is well, -1 while it is not
	rest  time.Duration
	back  time.Duration // when something came back last
}

// newLimiter returns one that sheds nothing. Tensors are shed first, where they are traced.
func newLimiter(tensors bool) *limiter {
	l := &limiter{rest: restMin, well: -1, back: -restMax}
	if l.steps = []probes.Shed{probes.ShedNothing, probes.ShedAll}; tensors {
		l.steps = []probes.Shed{probes.ShedNothing, probes.ShedTensors, probes.ShedAll}
	}
	return l
}

// observe takes the usage at a time, and tells whether what is shed has changed: by one
// step at most.
func (l *limiter) observe(at time.Duration, u Usage, b Bounds) bool {
	load := math.NaN() // not known
	if l.told && at > l.at {
		load = float64(u.CPU-l.usage.CPU) / float64(at-l.at)
	}
	l.told, l.at, l.usage = true, at, u
	if b.CPU > 0 && load > b.CPU*cpuHigh {
		l.over++
	} else {
		l.over = 0
	}
	memory := float64(u.Memory) / float64(b.Memory)
	var why string
	switch {
	case b.Memory > 0 && memory > memoryHigh:
		why = fmt.Sprintf("it needs %s of memory, and may have %s", bytefmt.Format(u.Memory), bytefmt.Format(b.Memory))
	case l.over >= cpuOver:
		why = fmt.Sprintf("it took %.1f %% of a core, of %.1f %% that it may take", load*100, b.CPU*100)
	}
	if why != "" {
		return l.more(at, why)
	}
	if b.Memory > 0 && memory > memoryLow || b.CPU > 0 && !(load <= b.CPU*cpuLow) {
		l.well = -1
		return false
	}
	if l.well < 0 {
		l.well = at
	}
	return l.shed > probes.ShedNothing && at-l.well >= l.rest && l.less(at)
}

// more sheds one step more.
func (l *limiter) more(at time.Duration, why string) bool {
	l.well, l.over = -1, 0
	if l.step == len(l.steps)-1 {
		return false
	}
	if at-l.back < restMin {
		l.rest = min(2*l.rest, restMax)
	}
	l.step++
	l.shed = l.steps[l.step]
	l.why = fmt.Sprintf("The agent is at a limit: %s. %s have no call stack meanwhile; totals are complete.", why, shedWhat[l.shed])
	return true
}

// less sheds one step less. What lasted long enough is no reason to be slow any more.
func (l *limiter) less(at time.Duration) bool {
	if at-l.back >= 2*l.rest {
		l.rest = restMin
	}
	l.step--
	l.shed = l.steps[l.step]
	l.back, l.well = at, at
	if l.shed == probes.ShedNothing {
		l.why = ""
	} else {
		l.why = fmt.Sprintf("The agent was at a limit a while ago. %s have no call stack meanwhile; totals are complete.", shedWhat[l.shed])
	}
	return true
}

// shedWhat begins a sentence on what each step sheds.
var shedWhat = [...]string{probes.ShedTensors: "New tensors", probes.ShedAll: "New allocations"}
