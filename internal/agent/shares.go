package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A Cost is the processor time that a user or a process took of the agent since the
// previous round, and the memory that it holds now.
type Cost struct {
	probes.Consumer
	Name   string // of the process, "" for a user
	CPU    time.Duration
	Memory int64
}

// bytesPerLive is roughly the agent's memory for one live allocation, in bytes.
const bytesPerLive = 100

// costs computes the cost of each round from counters that only grow.
type costs struct {
	before  map[probes.Consumer]session.Cost
	reading time.Duration
	worked  time.Duration // of all users so far
}

// since returns the cost of each user and process since the last call, and the time that
// all of them took so far. Users and processes share the time for reading events in
// proportion to the bytes of their events. A user's processes share the time for stacks, names
// and analyses alike, but for those that shed all stacks. All times are multiplied by factor.
func (c *costs) since(now []session.Cost, reading time.Duration, factor float64) (all []Cost, worked time.Duration) {
	times := func(d time.Duration) time.Duration { return time.Duration(float64(max(d, 0)) * factor) }
	before := c.before
	c.before = make(map[probes.Consumer]session.Cost, len(now))
	type taken struct {
		bytes, stackless float64
		work             time.Duration
	}
	users, sum := map[uint32]*taken{}, 0.0
	// A new process or user has no earlier figure. The count of a user that was forgotten
	// in between starts again.
	bytes := func(x session.Cost) float64 {
		if old := before[x.Consumer].Bytes; x.Bytes > old {
			return float64(x.Bytes - old)
		}
		return 0
	}
	for _, x := range now {
		c.before[x.Consumer] = x
		if x.PID == 0 {
			took := &taken{bytes: bytes(x), work: times(x.Work - before[x.Consumer].Work)}
			users[x.User] = took
			sum += took.bytes
			c.worked += took.work
		}
	}
	read := times(reading - c.reading)
	c.reading = reading
	c.worked += read
	for _, x := range now {
		if x.PID != 0 && x.Shed == probes.ShedAll {
			users[x.User].stackless += bytes(x)
		}
	}
	part := func(d time.Duration, bytes, of float64) float64 {
		if bytes <= 0 || of <= 0 {
			return 0
		}
		return float64(d) * min(bytes/of, 1)
	}
	for _, x := range now {
		u, cpu := users[x.User], part(read, bytes(x), sum)
		switch {
		case x.PID == 0:
			cpu += float64(u.work)
		case x.Shed != probes.ShedAll:
			cpu += part(u.work, bytes(x), u.bytes-u.stackless)
		}
		all = append(all, Cost{x.Consumer, x.Name, time.Duration(cpu), x.Live * bytesPerLive})
	}
	return all, c.worked
}

// share divides the room equally, and returns the limit for one. If one takes less than
// the limit, the others may take the rest.
func share(taken []float64, room float64) float64 {
	taken = slices.Sorted(slices.Values(taken))
	for i, x := range taken {
		part := room / float64(len(taken)-i)
		if x > part {
			return part
		}
		room -= x
	}
	return room
}

// maxApart bounds the processes of one user that shed separately. If more would have to,
// the user as a whole sheds.
const maxApart = 8

// An excess finds the users and processes that take more than their share.
type excess struct {
	costs []Cost
	of    func(Cost) float64
	// full reports whether a process or a user sheds everything already.
	full func(probes.Consumer) bool
}

// choose returns the user or the processes that must shed more, so that all users fit into
// the room. It starts with the user that takes most. It returns the fewest of that user's
// processes that suffice, or else the user. It returns nothing if all users above their
// share shed everything already.
func (e *excess) choose(room float64) []Cost {
	var users []Cost
	var taken []float64
	for _, c := range e.costs {
		if c.PID == 0 {
			users, taken = append(users, c), append(taken, e.of(c))
		}
	}
	e.sort(users)
	each := share(taken, room)
	for _, u := range users {
		if e.of(u) <= each {
			break
		}
		if e.full(u.Consumer) {
			continue
		}
		if found := e.chooseOf(u, each); len(found) > 0 {
			return found
		}
	}
	return nil
}

// chooseOf chooses among a user and that user's processes. room is the user's limit.
func (e *excess) chooseOf(u Cost, room float64) (found []Cost) {
	var processes []Cost
	var taken []float64
	rest := e.of(u) // of processes that have ended or take little
	for _, c := range e.costs {
		if c.PID != 0 && c.User == u.User {
			processes, taken = append(processes, c), append(taken, e.of(c))
		}
	}
	e.sort(processes)
	each, over := share(taken, room), e.of(u)-room
	for _, p := range processes {
		if e.of(p) <= each {
			break
		}
		rest -= e.of(p)
		if over > 0 && !e.full(p.Consumer) {
			found = append(found, p)
			over -= e.of(p)
		}
	}
	if len(found) > maxApart || len(found) == 0 && rest > room {
		return []Cost{u}
	}
	return found
}

func (e *excess) sort(costs []Cost) {
	sorting.Stable(costs, func(a, b Cost) int { return cmp.Compare(e.of(b), e.of(a)) })
}
