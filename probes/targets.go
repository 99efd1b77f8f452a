package probes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

// noPlace is the place of all users without one of their own.
const noPlace = uint16(0)

// NoUser stands for all users without a place of their own.
const NoUser = ^uint32(0)

// targets is the kernel side's table of traced processes, and of the places of their users.
type targets struct {
	*bpf.Users
	table, users, owners *ebpf.Map
	meter                *work.Meter

	// mu keeps the maps open while a job of the finder uses them. Such a job may outlast the
	// Tracer, because a target's file may keep it waiting.
	mu     sync.RWMutex
	closed bool
}

func openTargets(maps map[string]*ebpf.Map, meter *work.Meter) (*targets, error) {
	users, err := bpf.MapUsers(maps["users"])
	return &targets{Users: users, table: maps["targets"], users: maps["users"], owners: maps["owners"], meter: meter}, err
}

// use calls f unless the maps are closed.
func (t *targets) use(f func()) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		f()
	}
}

// close waits until nobody uses the maps, and keeps them from being used.
func (t *targets) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// add makes a process of a user a target. The kernel side finds the user if that is others.
func (t *targets) add(pid int, user uint32) error {
	err := os.ErrClosed
	t.use(func() {
		x := bpf.Target{}
		if user != others {
			x.User = uint32(t.place(user, true))
		}
		err = t.table.Update(uint32(pid), x, ebpf.UpdateNoExist)
		t.TargetChanged()
		if errors.Is(err, ebpf.ErrKeyExist) {
			err = t.assign(pid, x.User)
		}
	})
	return err
}

// assign moves a target that the kernel side added to the place of its tenant. The kernel side knows
// only the Unix user.
func (t *targets) assign(pid int, place uint32) error {
	var x bpf.Target
	if place == uint32(noPlace) || t.table.Lookup(uint32(pid), &x) != nil || x.User == place {
		return nil
	}
	x.User = place // what the process costs at this moment is not counted
	err := t.table.Update(uint32(pid), x, ebpf.UpdateExist)
	t.TargetChanged()
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// trace makes a process a target, unless it has ended. Then the error is os.ErrNotExist. The
// kernel side removes a target at its exit only, and a later process may have the same PID.
func (t *targets) trace(pid int, user uint32) error {
	err := t.add(pid, user)
	if proc.Ended(pid) {
		_ = t.remove(pid) // its exit may have
		return os.ErrNotExist
	}
	return err
}

// has reports whether a process is a target now. With Options.All these are the processes that
// used CUDA.
func (t *targets) has(pid int) (is bool) {
	var x bpf.Target
	t.use(func() { is = t.table.Lookup(uint32(pid), &x) == nil })
	return is
}

func (t *targets) remove(pid int) error {
	err := os.ErrClosed
	t.use(func() { err = t.table.Delete(uint32(pid)) })
	return err
}

// userOf returns the place of a target's user, and whether the process has no stacks (ShedAll).
// The place is 0 for a process that is not traced.
func (t *targets) userOf(pid int) (user uint16, shed bool) {
	t.use(func() { user, shed = bpf.UserOf(t.table, t.users, pid) })
	return user, shed
}

// place returns the place of a user, as gm_user does. claim gives the user one if there is none.
func (t *targets) place(who uint32, claim bool) uint16 {
	for i := range uint32(bpf.UserTries) {
		place := (who*0x9e3779b1>>22 + i) % bpf.MaxUsers
		if place == uint32(noPlace) {
			continue
		}
		var owner uint32
		err := t.owners.Lookup(place, &owner)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			if !claim {
				continue
			}
			if err = t.owners.Update(place, who, ebpf.UpdateNoExist); err == nil {
				return uint16(place)
			}
			err = t.owners.Lookup(place, &owner) // the kernel side was first
		}
		if err == nil && owner == who {
			return uint16(place)
		}
	}
	return noPlace
}

// freePlaces frees the places of users without a process, whose events have all been read and
// who shed nothing, and returns these places.
func (t *targets) freePlaces(used map[uint16]bool) (unused []uint16) {
	var place, owner uint32
	for it := t.owners.Iterate(); it.Next(&place, &owner); {
		x := &t.Places[place%bpf.MaxUsers]
		if !used[uint16(place)] && atomic.LoadUint64(&x.Sent) == atomic.LoadUint64(&x.Read) && atomic.LoadUint64(&x.Shed) == 0 {
			unused = append(unused, uint16(place))
		}
	}
	for _, place := range unused {
		atomic.StoreUint64(&t.Places[place].Lost, 0)
		_ = t.owners.Delete(uint32(place))
	}
	return unused
}

// A Consumer is a user of this machine, or with a PID one process of that user.
type Consumer struct {
	User uint32
	PID  int
}

// A Cost is what the events of a consumer cost so far.
type Cost struct {
	Consumer
	Bytes uint64 // in the ring buffer; of a user also those of ended processes
	Lost  uint64 // events for which the ring buffer had no room
	// Work is the processor time spent on this user's processes alone.
	Work time.Duration
	Shed Shed // what this process sheds, not counting what its user does
}

// costs returns the costs of each user, and of each traced process. It returns a user without a
// process once more, and then frees the user's place.
func (t *targets) costs() (costs []Cost) {
	used, users := map[uint16]bool{}, map[uint16]uint32{noPlace: NoUser}
	var place, owner, pid uint32
	for it := t.owners.Iterate(); it.Next(&place, &owner); {
		users[uint16(place)] = owner
	}
	for i, who := range users {
		x := &t.Places[i%bpf.MaxUsers]
		c := Cost{Consumer: Consumer{User: who}, Bytes: atomic.LoadUint64(&x.Sent), Lost: atomic.LoadUint64(&x.Lost)}
		if i != noPlace {
			c.Work = t.meter.Of(i)
		}
		costs = append(costs, c)
	}
	var x bpf.Target
	for it := t.table.Iterate(); it.Next(&pid, &x); {
		used[uint16(x.User)] = true
		if who, ok := users[uint16(x.User)]; ok {
			costs = append(costs, Cost{Consumer: Consumer{who, int(pid)}, Bytes: x.Bytes, Lost: x.Lost, Shed: Shed(x.Shed)})
		}
	}
	for _, place := range t.freePlaces(used) {
		t.meter.Move(place, noPlace)
	}
	return costs
}

// A Shed selects the calls of a process or a user that get no stack, which saves the time of the
// traced programs and of the tracer. Each call is still an event, and counts. It is enum gm_shed
// of bpf/users.h.
type Shed uint8

// Each step sheds more than the one before.
const (
	ShedNothing Shed = iota
	ShedTensors      // calls of PyTorch's caching allocator
	ShedAll          // every call: bpf.ShedAll
	numShed
)

func (t *targets) shed(c Consumer, s Shed) error {
	if s >= numShed {
		return fmt.Errorf("shed %d: there is no such step", s)
	}
	if c.PID == 0 {
		place := noPlace
		if c.User != NoUser {
			if place = t.place(c.User, false); place == noPlace {
				return os.ErrNotExist
			}
		}
		atomic.StoreUint64(&t.Places[place].Shed, uint64(s))
		return nil
	}
	var x bpf.Target
	err := t.table.Lookup(uint32(c.PID), &x)
	if err == nil {
		x.Shed = uint32(s) // what the process costs at this moment is not counted
		err = t.table.Update(uint32(c.PID), x, ebpf.UpdateExist)
		t.TargetChanged()
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return os.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("change which calls of process %d have stacks: %w", c.PID, err)
	}
	return nil
}

// notes returns sentences about users whose events found no room in the ring buffer.
func (t *targets) notes() (notes []string) {
	var processes map[uint32][]string
	for place := range t.Places {
		n := atomic.LoadUint64(&t.Places[place].Lost)
		if n == 0 {
			continue
		}
		if processes == nil {
			processes = t.losers()
		}
		note := fmt.Sprintf("%d events of users beyond those that can be told apart", n)
		var who uint32
		if t.owners.Lookup(uint32(place), &who) == nil {
			note = fmt.Sprintf("%d events of %s", n, tenant.Name(who))
		}
		note += " found no room in the ring buffer: the totals of these processes are not complete"
		if p := processes[uint32(place)]; p != nil {
			slices.Sort(p)
			note += ": " + join(p)
		}
		notes = append(notes, note)
	}
	slices.Sort(notes)
	return notes
}

// losers returns the processes with lost events, by the place of their user.
func (t *targets) losers() map[uint32][]string {
	out := map[uint32][]string{}
	var pid uint32
	var x bpf.Target
	for it := t.table.Iterate(); it.Next(&pid, &x); {
		if x.Lost > 0 {
			out[x.User] = append(out[x.User], fmt.Sprintf("%d (%d)", pid, x.Lost))
		}
	}
	return out
}
