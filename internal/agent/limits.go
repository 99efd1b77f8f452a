package agent

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A Usage is what the agent took of the machine by some moment.
type Usage struct {
	// CPU is the processor time of tracing, since it began. What it takes to serve and to
	// push is not in it: shedding would not save that.
	CPU time.Duration
	// Memory is bytes that are resident, but for garbage: what it cannot do without.
	Memory int64
}

// Bounds are the limits that the agent keeps to, 0 for none.
type Bounds struct {
	Memory int64   // bytes
	CPU    float64 // cores
}

const (
	// The limiter sheds stacks above the high part of a limit, and use below the low part is
	// well. The memory between memoryHigh and the limit is room for garbage: with less, Go
	// collects more often, and the reader of events waits.
	memoryHigh, memoryLow = 0.7, 0.55
	cpuHigh, cpuLow       = 1.0, 0.5
	// cpuOver is how often in a row the processor must be above its limit.
	cpuOver = 2
	// Stacks come back after restMin below the limits. If they then last for less than restMin,
	// the wait doubles, up to restMax.
	restMin, restMax = time.Minute, time.Hour
	// leastShared is the part of a limit that users share at least, however much of the use
	// belongs to no user. A user below its share of that part did not cause the excess.
	leastShared = 0.1
)

// A limiter decides what is shed, and of which users and processes. It is pure: callers give
// it the time and the usage.
type limiter struct {
	steps []probes.Shed // from one to the next more is shed
	of    map[probes.Consumer]*shedding

	begun bool // at and usage are known
	at    time.Duration
	usage Usage
	load  float64       // of the processor, in cores; NaN if it is not known
	over  int           // observations in a row above the limit of the processor
	well  time.Duration // since when all is well, -1 while it is not
}

// A shedding is what is shed of a process or a user, or was.
type shedding struct {
	step int
	why  string        // sentence on what is shed, "" for nothing
	rest time.Duration // how long all must be well until less is shed
	back time.Duration // when something came back last
}

// A change says that something else is shed of a process or a user from here on.
type change struct {
	probes.Consumer
	shed probes.Shed
	more bool
	why  string // sentence on what is shed, "" for nothing
}

// newLimiter returns one that sheds nothing. Tensors are shed first, where they are traced.
func newLimiter(tensors bool) *limiter {
	l := &limiter{of: map[probes.Consumer]*shedding{}, well: -1}
	if l.steps = []probes.Shed{probes.ShedNothing, probes.ShedAll}; tensors {
		l.steps = []probes.Shed{probes.ShedNothing, probes.ShedTensors, probes.ShedAll}
	}
	return l
}

// observe takes the usage at a time, and what it took since the time before for each user
// and process. It returns what changes: where more is shed, by one step at most.
func (l *limiter) observe(at time.Duration, u Usage, b Bounds, costs []Cost) []change {
	l.forget(at, costs)
	passed := float64(at - l.at)
	if l.load = math.NaN(); l.begun && at > l.at {
		l.load = float64(u.CPU-l.usage.CPU) / passed
	}
	load := l.load
	l.begun, l.at, l.usage = true, at, u
	if b.CPU > 0 && load > b.CPU*cpuHigh {
		l.over++
	} else {
		l.over = 0
	}
	memory := float64(u.Memory) / float64(b.Memory)
	switch {
	case b.Memory > 0 && memory > memoryHigh:
		l.well = -1
		why := fmt.Sprintf("it needs %s of memory, and may have %s", bytefmt.Format(u.Memory), bytefmt.Format(b.Memory))
		return l.more(at, why, costs, float64(u.Memory), float64(b.Memory)*memoryHigh, func(c Cost) float64 { return float64(c.Memory) })
	case l.over >= cpuOver:
		l.well, l.over = -1, 0
		why := fmt.Sprintf("it used %.1f %% of a core, and may use %.1f %%", load*100, b.CPU*100)
		return l.more(at, why, costs, load*passed, b.CPU*cpuHigh*passed, func(c Cost) float64 { return float64(c.CPU) })
	case b.Memory > 0 && memory > memoryLow || b.CPU > 0 && !(load <= b.CPU*cpuLow):
		l.well = -1
		return nil
	}
	if l.well < 0 {
		l.well = at
	}
	return l.less(at)
}

// forget forgets users and processes that have ended, or of which nothing was shed for long.
func (l *limiter) forget(at time.Duration, costs []Cost) {
	there := make(map[probes.Consumer]bool, len(costs))
	for _, c := range costs {
		there[c.Consumer] = true
	}
	maps.DeleteFunc(l.of, func(c probes.Consumer, s *shedding) bool {
		return !there[c] || s.step == 0 && at-s.back >= 2*s.rest
	})
}

// more sheds one step more of those who take more than their share of the room that is
// left beside what is not for anybody.
func (l *limiter) more(at time.Duration, why string, costs []Cost, taken, limit float64, of func(Cost) float64) (changes []change) {
	for _, c := range costs {
		if c.PID == 0 {
			taken -= of(c)
		}
	}
	e := excess{costs, of, func(c probes.Consumer) bool {
		s := l.of[c]
		return s != nil && s.step == len(l.steps)-1
	}}
	for _, c := range e.choose(max(limit-max(taken, 0), limit*leastShared)) {
		s := l.of[c.Consumer]
		if s == nil {
			s = &shedding{rest: restMin, back: -restMax}
			l.of[c.Consumer] = s
		}
		if at-s.back < restMin {
			s.rest = min(2*s.rest, restMax)
		}
		s.step++
		shed := l.steps[s.step]
		s.why = fmt.Sprintf("The agent is at a limit: %s. It spends most of that on %s, whose %s get no call stack for now. Totals stay complete.", why, c.who(), shedWhat[shed])
		changes = append(changes, change{c.Consumer, shed, true, s.why})
	}
	return changes
}

// less sheds one step less of the one for whom that is due first, once all was well for
// long enough.
func (l *limiter) less(at time.Duration) []change {
	var next *shedding
	var of probes.Consumer
	for c, s := range l.of {
		if s.step > 0 && at-l.well >= s.rest && (next == nil || s.rest < next.rest || s.rest == next.rest && compare(c, of) < 0) {
			next, of = s, c
		}
	}
	if next == nil {
		return nil
	}
	if at-next.back >= 2*next.rest {
		next.rest = restMin // it lasted: no reason to be slow any more
	}
	next.step--
	next.back, l.well = at, at
	shed := l.steps[next.step]
	if next.why = ""; shed != probes.ShedNothing {
		next.why = fmt.Sprintf("The agent was at a limit a while ago. The %s of %s get no call stack for now. Totals stay complete.", shedWhat[shed], Cost{Consumer: of}.who())
	}
	return []change{{of, shed, false, next.why}}
}

func compare(a, b probes.Consumer) int {
	return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.PID, b.PID))
}

// why returns a sentence for each user and process of which something is shed.
func (l *limiter) why() (out []string) {
	for _, s := range l.of {
		if s.why != "" {
			out = append(out, s.why)
		}
	}
	slices.Sort(out)
	return out
}

// who names a user or a process, for people.
func (c Cost) who() string {
	user := tenant.Name(c.User)
	if c.User == probes.NoUser {
		user = "users beyond the limit of separate users"
	}
	switch {
	case c.PID == 0:
		return user
	case c.Name == "":
		return fmt.Sprintf("process %d of %s", c.PID, user)
	}
	return fmt.Sprintf("process %d (%s) of %s", c.PID, c.Name, user)
}

// shedWhat names what each step sheds.
var shedWhat = [...]string{probes.ShedTensors: "new tensors", probes.ShedAll: "new allocations"}
