package alert

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// parts is how many parts the time of a rule about growth has.
const parts = 5

// A growth is what a value was in the latest parts of a time, six at most.
type growth []part

type part struct {
	at time.Duration // when it began
	// low is the least that the value was, so that what comes and goes is no growth. Of a
	// number it is the last.
	low int64
	// starting: a process that is part of the subject started.
	starting bool
}

// observe takes a value. Memory that is 0 has yet to begin.
func (g *growth) observe(at time.Duration, is int64, window time.Duration, counts, starting bool) {
	all := *g
	if is == 0 && !counts {
		*g = all[:0]
		return
	}
	if n := len(all); n > 0 && at-all[n-1].at < window/parts {
		p := &all[n-1]
		p.starting = p.starting || starting
		if counts || is < p.low {
			p.low = is
		}
		return
	}
	all = append(all, part{at, is, starting})
	for len(all) > 2 && at-all[1].at >= window {
		all = slices.Delete(all, 0, 1)
	}
	*g = all
}

// over returns by how much the value grew in the window, and in its latest part, if it is
// known for so long. Growth is no more than the middle one of the rises of all parts, in
// each: what rises in less than half of the parts, such as a program that starts, does not
// grow. What rises while a process starts is no growth of a GPU or an owner. A number grows
// by any rise.
func (g growth) over(window time.Duration, counts bool) (grown, latest int64, known bool) {
	n := len(g) - 1
	if n < 1 || g[n].at-g[0].at < window {
		return 0, 0, false
	}
	var of [parts]int64
	rises := of[:n]
	for i := range rises {
		rises[i] = g[i+1].low - g[i].low
		if g[i+1].starting {
			rises[i] = min(rises[i], 0)
		}
		grown += rises[i]
	}
	latest = rises[n-1]
	slices.Sort(rises)
	if grown > 0 && !counts {
		grown = min(grown, max(0, int64(n)*rises[(n-1)/2]))
	}
	return grown, latest, true
}

// starts are the moments at which processes came to each GPU.
type starts map[arrival]time.Duration

type arrival struct {
	pid int
	gpu string
}

// anyGPU has the latest of all GPUs in what observe returns.
const anyGPU = ""

// observe returns when the latest process came to each GPU.
func (s starts) observe(at time.Duration, t *state.Totals, living map[int]Subject) map[string]time.Duration {
	for k := range s {
		if _, lives := living[k.pid]; !lives {
			delete(s, k)
		}
	}
	latest := map[string]time.Duration{}
	for i := range t.Accounts {
		a := &t.Accounts[i]
		if _, lives := living[a.PID]; !lives || a.Total <= 0 {
			continue
		}
		k := arrival{a.PID, a.GPU}
		if _, known := s[k]; !known {
			s[k] = at
		}
		latest[a.GPU] = max(latest[a.GPU], s[k])
		latest[anyGPU] = max(latest[anyGPU], s[k])
	}
	return latest
}

// starting reports whether a process that is part of a GPU or an owner is younger than half
// of the time of a rule about growth, given when the latest came to each GPU.
func (r *Rule) starting(at time.Duration, s Subject, begun map[string]time.Duration) bool {
	if !r.grows || r.what.counts || s.PID != 0 {
		return false
	}
	latest, any := begun[s.GPU] // of an owner, anyGPU
	return any && at-latest < r.window/2
}
