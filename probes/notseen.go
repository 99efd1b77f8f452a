package probes

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

// An absence is the reason why a process is not seen, or not in full.
type absence string

const (
	noSlot     absence = "no free slot for a library"
	waitsLong  absence = "too many of its user's libraries wait"
	noAnswer   absence = "a library's file does not answer"
	notTarget  absence = "the table of processes is full"
	unreadable absence = "its libraries could not be looked at"
)

// absenceOf returns the reason for an error.
func absenceOf(err error) absence {
	if errors.Is(err, errNotProbed) {
		return noSlot
	}
	return unreadable
}

// NotSeen counts the processes of one user that map a library of CUDA and are not traced, or
// not in full, for one reason.
type NotSeen struct {
	User      uint32
	Why       string
	Processes int
	More      bool // this user may have more: no others are kept
}

// String returns it as a short text.
func (n NotSeen) String() string {
	text := fmt.Sprintf("%d processes", n.Processes)
	if n.Processes == 1 {
		text = "1 process"
	}
	if n.More {
		text = "at least " + text
	}
	who := "others"
	if n.User != others {
		who = tenant.Name(n.User)
	}
	return fmt.Sprintf("%s of %s: %s", text, who, n.Why)
}

// Name returns the user's number or the control group, or "others" for processes that cannot be read and
// for users beyond maxUnseenUsers.
func (n NotSeen) Name() string {
	if n.User == others {
		return "others"
	}
	return strings.TrimPrefix(tenant.Name(n.User), "user ")
}

const (
	// maxUnseen bounds the unseen processes of one user, and maxUnseenUsers the users that have some.
	maxUnseen, maxUnseenUsers = 256, 256
	// againInterval is the time between two tries to probe an unseen process.
	againInterval = 10 * time.Second
	// maxAgain bounds the tries for one user at one time.
	maxAgain = 2
)

// unseen has the processes that map a library without probes, as far as known. Its owner locks it.
type unseen struct {
	processes map[int]*unseenProcess
	of        map[uint32]int // their number by user
}

type unseenProcess struct {
	user  uint32
	under uint32 // whose bound it takes: user, or others
	why   absence
	at    time.Duration // when it mapped the library: CLOCK_MONOTONIC
	again time.Time     // when to try again
}

func newUnseen() unseen {
	return unseen{map[int]*unseenProcess{}, map[uint32]int{}}
}

// add adds a process, which mapped a library at the moment at.
func (u *unseen) add(pid int, uid uint32, why absence, at time.Duration, now time.Time) {
	if old := u.processes[pid]; old != nil {
		at = max(at, old.at)
		u.remove(pid)
	}
	under := uid
	if u.of[uid] == 0 && len(u.of) >= maxUnseenUsers {
		under = others
	}
	if u.of[under] < maxUnseen {
		u.of[under]++
		u.processes[pid] = &unseenProcess{uid, under, why, at, now.Add(againInterval)}
	}
}

// remove removes a process that ended, or whose libraries all have probes.
func (u *unseen) remove(pid int) {
	p := u.processes[pid]
	if p == nil {
		return
	}
	delete(u.processes, pid)
	if u.of[p.under]--; u.of[p.under] == 0 {
		delete(u.of, p.under)
	}
}

// due returns claims for the processes whose time has come, a few of each user.
func (u *unseen) due(now time.Time) (claims []claim) {
	n := map[uint32]int{}
	for pid, p := range u.processes {
		if !now.Before(p.again) && n[p.under] < maxAgain {
			n[p.under]++
			p.again = now.Add(againInterval)
			claims = append(claims, claim{pid: pid, user: p.user, at: p.at, again: true})
		}
	}
	return claims
}

// summary returns the processes by user and reason.
func (u *unseen) summary() (out []NotSeen) {
	n := map[NotSeen]int{}
	for _, p := range u.processes {
		n[NotSeen{User: p.under, Why: string(p.why), More: u.of[p.under] == maxUnseen}]++
	}
	for of, processes := range n {
		of.Processes = processes
		out = append(out, of)
	}
	sorting.Stable(out, func(a, b NotSeen) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(b.Processes, a.Processes), cmp.Compare(a.Why, b.Why))
	})
	return out
}
