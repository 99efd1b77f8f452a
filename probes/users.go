package probes

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// noPlace is that of users who have none of their own.
const noPlace = uint16(0)

// NoUser stands for all users who have no place of their own.
const NoUser = ^uint32(0)

// users is what the kernel side and this one know of the users whose processes are traced.
type users struct {
	*bpf.Users
	owners *ebpf.Map // of places
}

// place is gm_user for a user. claim gives it one if it has none.
func (u *users) place(who uint32, claim bool) uint16 {
	for i := range uint32(bpf.UserTries) {
		place := (who*0x9e3779b1>>22 + i) % bpf.MaxUsers
		if place == uint32(noPlace) {
			continue
		}
		var owner uint32
		err := u.owners.Lookup(place, &owner)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			if !claim {
				continue
			}
			if err = u.owners.Update(place, who, ebpf.UpdateNoExist); err == nil {
				return uint16(place)
			}
			err = u.owners.Lookup(place, &owner) // the kernel side was first
		}
		if err == nil && owner == who {
			return uint16(place)
		}
	}
	return noPlace
}

// free takes places back from users without a process, whose events have all been read
// and of whom nothing is shed.
func (u *users) free(used map[uint16]bool) (unused []uint16) {
	var place, owner uint32
	for it := u.owners.Iterate(); it.Next(&place, &owner); {
		x := &u.Places[place%bpf.MaxUsers]
		if !used[uint16(place)] && atomic.LoadUint64(&x.Sent) == atomic.LoadUint64(&x.Read) && atomic.LoadUint64(&x.Shed) == 0 {
			unused = append(unused, uint16(place))
		}
	}
	for _, place := range unused {
		atomic.StoreUint64(&u.Places[place].Lost, 0)
		_ = u.owners.Delete(uint32(place))
	}
	return unused
}

// A Consumer is a user of this machine, or with a PID one process of that user's.
type Consumer struct {
	User uint32
	PID  int
}

// A Cost is what the events of a consumer took so far.
type Cost struct {
	Consumer
	Bytes uint64 // in the ring buffer; of a user also of processes that have ended
	Lost  uint64 // events that found no room there
	// Work is the processor time that was spent on this user's processes alone.
	Work time.Duration
}

// Costs returns what each user costs and each traced process. Users without a process
// are told once more, and forgotten.
func (t *Tracer) Costs() (costs []Cost) {
	used, of := map[uint16]bool{}, map[uint16]uint32{}
	var place, owner, pid uint32
	for it := t.users.owners.Iterate(); it.Next(&place, &owner); {
		of[uint16(place)] = owner
	}
	of[noPlace] = NoUser
	for i, who := range of {
		x := &t.users.Places[i%bpf.MaxUsers]
		c := Cost{Consumer: Consumer{User: who}, Bytes: atomic.LoadUint64(&x.Sent), Lost: atomic.LoadUint64(&x.Lost)}
		if i != noPlace {
			c.Work = t.opts.Meter.Of(i)
		}
		costs = append(costs, c)
	}
	var x bpf.Target
	for it := t.coll.Maps["targets"].Iterate(); it.Next(&pid, &x); {
		used[uint16(x.User)] = true
		if who, ok := of[uint16(x.User)]; ok {
			costs = append(costs, Cost{Consumer: Consumer{who, int(pid)}, Bytes: x.Bytes, Lost: x.Lost})
		}
	}
	for _, place := range t.users.free(used) {
		t.opts.Meter.Move(place, noPlace)
	}
	return costs
}

// Worked is the processor time that went into reading what was traced, for all users
// together.
func (t *Tracer) Worked() time.Duration { return t.opts.Meter.Of(noPlace) }

// UserOf returns the place of a traced process's user, which stands for the user as long
// as a process of his is traced, and whether no stack of the process is taken. The place
// is 0 for a process that is not traced.
func (t *Tracer) UserOf(pid int) (user uint16, shed bool) {
	return bpf.UserOf(t.coll.Maps["targets"], t.coll.Maps["users"], pid)
}

// newTarget puts a process into the kernel side's table. One that is there stays as it is.
func (t *Tracer) newTarget(pid int) error {
	x := bpf.Target{}
	if who, err := proc.User(pid); err == nil { // else the kernel side finds out
		x.User = uint32(t.users.place(who, true))
	}
	err := t.coll.Maps["targets"].Update(uint32(pid), x, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	return err
}

// lostNotes say of which users and processes events found no room in the ring buffer.
func (t *Tracer) lostNotes() (notes []string) {
	lost := map[uint32]uint64{}
	for i := range t.users.Places {
		if n := atomic.LoadUint64(&t.users.Places[i].Lost); n > 0 {
			lost[uint32(i)] = n
		}
	}
	if len(lost) == 0 {
		return nil
	}
	of := map[uint32][]string{}
	var pid uint32
	var x bpf.Target
	for it := t.coll.Maps["targets"].Iterate(); it.Next(&pid, &x); {
		if x.Lost > 0 {
			of[x.User] = append(of[x.User], fmt.Sprintf("%d (%d)", pid, x.Lost))
		}
	}
	for place, n := range lost {
		note := fmt.Sprintf("%d events of users beyond those that can be told apart", n)
		var who uint32
		if t.users.owners.Lookup(place, &who) == nil {
			note = fmt.Sprintf("%d events of user %d", n, who)
		}
		note += " found no room in the ring buffer: the totals of these processes are not complete"
		if of[place] != nil {
			slices.Sort(of[place])
			note += ": " + join(of[place])
		}
		notes = append(notes, note)
	}
	slices.Sort(notes)
	return notes
}
