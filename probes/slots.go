package probes

import (
	"errors"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	// maxAttachments bounds the libraries probed at one time.
	maxAttachments = 1024
	// linger is how long a library stays probed after the last traced process that mapped
	// it. It is short, because a link keeps a file system busy.
	linger = 5 * time.Second
	// refusal is how long a file without CUDA's functions is not opened again. Its inode
	// number may mean another file later.
	refusal = 10 * time.Second
	// maxRefused bounds those files of one user.
	maxRefused = 64
	// maxUsers bounds the users with entries of their own. The others share one.
	maxUsers = 4096
	// maxUnseen bounds the unseen processes of one user.
	maxUnseen = 256
	// againInterval is the time between two tries to probe an unseen process.
	againInterval = 10 * time.Second
	// maxAgain bounds the tries for one user at one time.
	maxAgain = 2
)

var (
	errNotProbed = errors.New("too many libraries are being probed, or its file does not answer")
	errStopped   = errors.New("no library is probed any more")
)

// slots is the table of probed libraries, of the processes that map them, and of the users of
// those processes. Its owner locks it; no method waits.
type slots struct {
	max       int
	table     map[attachKey]*attachment
	pending   map[attachKey]*pending
	processes map[int]*mapper // those with libraries or unseen ones
	users     map[uint32]*user
	closing   int // removed libraries that still have probes
	stopped   bool
}

// attachKey identifies a library, and a process if its probes are confined to that.
type attachKey struct {
	id    proc.FileID
	level Level // a process may map any file under any name
	pid   int
}

// A claim is the reason to probe a library: a process maps it.
type claim struct {
	pid   int           // 0: the library stays probed for good
	user  uint32        // of the process (proc.User)
	at    time.Duration // a time at which the process mapped the library: CLOCK_MONOTONIC
	only  int           // the process to which the probes are confined, 0 for none
	again bool          // a repeated claim, for which no other library of its user loses its slot
}

// A mapper is a process that maps libraries to probe.
type mapper struct {
	user   uint32
	libs   map[attachKey]bool // the probed ones
	gone   map[attachKey]int  // functions whose probes somebody removed, as far as known
	unseen *unseen            // nil if all of its libraries are probed, as far as known
}

// unseen describes a process that maps a library without probes.
type unseen struct {
	why   absence
	at    time.Duration // when it mapped the library: CLOCK_MONOTONIC
	again time.Time     // when to try again
}

// A user is the owner of processes that map libraries to probe.
type user struct {
	refused map[attachKey]time.Time // until when
	unseen  int                     // processes
	more    bool                    // unseen does not count all of them
	closing int                     // removed libraries that still have probes, for claims of this user
}

// others stands for all users beyond maxUsers. No user has this number.
const others = 1<<32 - 1

// A pending is a library that is being probed.
type pending struct {
	done   chan struct{}
	err    error // once done
	claims map[int]claim
}

func newSlots(most int) slots {
	return slots{max: most, table: map[attachKey]*attachment{}, pending: map[attachKey]*pending{},
		processes: map[int]*mapper{}, users: map[uint32]*user{}}
}

// user returns the entry of a user.
func (s *slots) user(uid uint32) *user {
	u := s.users[uid]
	if u == nil && len(s.users) >= maxUsers {
		uid = others
		u = s.users[uid]
	}
	if u == nil {
		u = &user{refused: map[attachKey]time.Time{}}
		s.users[uid] = u
	}
	return u
}

// forgetUsers drops the entries of users without anything to remember.
func (s *slots) forgetUsers(now time.Time) {
	for uid, u := range s.users {
		for key, until := range u.refused {
			if !now.Before(until) {
				delete(u.refused, key)
			}
		}
		if len(u.refused) == 0 && u.unseen == 0 && u.closing == 0 {
			delete(s.users, uid)
		}
	}
}

// refuse marks a file that has no functions to probe. With too many, it unmarks the one whose
// time ends first.
func (u *user) refuse(key attachKey, now time.Time) {
	if len(u.refused) >= maxRefused {
		var first attachKey
		var until time.Time
		for k, at := range u.refused {
			if until.IsZero() || at.Before(until) {
				first, until = k, at
			}
		}
		delete(u.refused, first)
	}
	u.refused[key] = now.Add(refusal)
}

func (u *user) refuses(key attachKey, now time.Time) bool { return now.Before(u.refused[key]) }

// use adds a claim to a probed library.
func (s *slots) use(key attachKey, a *attachment, c claim) {
	a.mappers[c.pid] = max(a.mappers[c.pid], c.at)
	s.process(c.pid, c.user).libs[key] = true
}

// process returns the entry of a process of a user.
func (s *slots) process(pid int, uid uint32) *mapper {
	m := s.processes[pid]
	if m == nil {
		m = &mapper{libs: map[attachKey]bool{}}
		s.processes[pid] = m
	}
	if m.unseen != nil && m.user != uid {
		s.user(m.user).unseen--
		s.user(uid).unseen++
	}
	m.user = uid
	return m
}

// forget drops the entry of a process without anything to remember.
func (s *slots) forget(pid int) {
	if m := s.processes[pid]; m != nil && len(m.libs) == 0 && m.unseen == nil {
		delete(s.processes, pid)
	}
}

// leave removes the claims of a process that ended, or replaced its image, at the moment at.
// A claim of a later mapping stays: its report can come before that of the exec.
func (s *slots) leave(pid int, at time.Duration, now time.Time) {
	m := s.processes[pid]
	if m == nil {
		return
	}
	if m.unseen != nil && m.unseen.at <= at {
		s.see(pid)
	}
	for key := range m.libs {
		a := s.table[key]
		if a != nil && a.mappers[pid] > at {
			continue
		}
		if delete(m.libs, key); a != nil {
			if delete(a.mappers, pid); len(a.mappers) == 0 {
				a.idle = now
			}
		}
	}
	s.forget(pid)
}

// inherit adds the claims of a child, which began with its parent's mappings at the moment at.
func (s *slots) inherit(parent, child int, at time.Duration) {
	m := s.processes[parent]
	if m == nil {
		return
	}
	for key := range m.libs {
		if a := s.table[key]; a != nil && a.mappers[parent] <= at {
			s.use(key, a, claim{pid: child, user: m.user, at: at})
		}
	}
}

// miss marks a process, which mapped a library at the moment at, as unseen.
func (s *slots) miss(pid int, uid uint32, why absence, at time.Duration, now time.Time) {
	m := s.process(pid, uid)
	switch u := s.user(uid); {
	case m.unseen != nil:
		at = max(at, m.unseen.at)
	case u.unseen >= maxUnseen:
		u.more = true
		s.forget(pid)
		return
	default:
		u.unseen++
	}
	m.unseen = &unseen{why, at, now.Add(againInterval)}
}

// see unmarks a process: all of its libraries have probes.
func (s *slots) see(pid int) {
	m := s.processes[pid]
	if m == nil || m.unseen == nil {
		return
	}
	m.unseen = nil
	if u := s.user(m.user); u.unseen > 0 {
		u.unseen--
		u.more = u.more && u.unseen > 0
	}
	s.forget(pid)
}

// due returns claims for the unseen processes whose time has come, a few of each user.
func (s *slots) due(now time.Time) (claims []claim) {
	n := map[uint32]int{}
	for pid, m := range s.processes {
		if m.unseen != nil && !now.Before(m.unseen.again) && n[m.user] < maxAgain {
			n[m.user]++
			m.unseen.again = now.Add(againInterval)
			claims = append(claims, claim{pid: pid, user: m.user, at: m.unseen.at, again: true})
		}
	}
	return claims
}

// unused removes the libraries that no process has mapped for a while, and returns them.
func (s *slots) unused(now time.Time) (out []*attachment) {
	for key, a := range s.table {
		if len(a.mappers) == 0 && now.Sub(a.idle) >= linger {
			delete(s.table, key)
			s.closing++
			out = append(out, a)
		}
	}
	return out
}

// notSeen returns the unseen processes by user and reason.
func (s *slots) notSeen() (out []NotSeen) {
	at := map[NotSeen]int{}
	for _, m := range s.processes {
		if m.unseen == nil {
			continue
		}
		key := NotSeen{User: m.user, Why: string(m.unseen.why)}
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			key.More = s.user(m.user).more
			out = append(out, key)
		}
		out[i].Processes++
	}
	slices.SortFunc(out, func(a, b NotSeen) int {
		if a.User != b.User {
			return int(int64(a.User) - int64(b.User))
		}
		return b.Processes - a.Processes
	})
	return out
}
