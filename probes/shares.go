package probes

import (
	"math"
	"time"
)

// The users of a machine share the slots for probed libraries. No share is fixed: one user may
// have every slot until another user needs one. Then the user with the most slots loses the
// oldest. If that is the user who needs one, the process with the most slots loses it. So a
// process that maps a thousand libraries first costs itself its probes, then other processes of
// its user, and nobody else.
//
// A slot is one file. The kernel puts probes on an inode, so two files of equal content need a
// slot each, and each counts for its user.

const (
	// maxClosing bounds the libraries that lose their probes to make room.
	maxClosing = maxAttachments / 4
	// maxUserClosing bounds those that do so for one user's claims.
	maxUserClosing = maxClosing / 4
)

// makeRoom reports whether there is room to probe one more library for a claim. It returns the
// library that it removed for that, if any, and claims of the processes that map this one.
func (s *slots) makeRoom(c claim) (old *attachment, lost []claim, ok bool) {
	if len(s.table)+len(s.pending) < s.max {
		return nil, nil, true
	}
	u := s.user(c.user)
	if s.closing >= maxClosing || u.closing >= maxUserClosing {
		return nil, nil, false
	}
	key, old := s.oldest(c)
	if old == nil {
		return nil, nil, false
	}
	delete(s.table, key)
	for pid, at := range old.mappers {
		m := s.processes[pid]
		delete(m.libs, key)
		lost = append(lost, claim{pid: pid, user: m.user})
		s.miss(pid, m.user, noSlot, at, time.Now())
	}
	s.closing++
	u.closing++
	old.evictor = u
	return old, lost, true
}

// closed frees the slot of a removed library, which has no probes any more.
func (s *slots) closed(a *attachment) {
	s.closing--
	if a.evictor != nil {
		a.evictor.closing--
		a.evictor = nil
	}
}

// shares returns the number of slots of each user, with those of pending libraries.
func (s *slots) shares() map[uint32]int {
	shares := map[uint32]int{}
	counted := map[uint32]bool{}
	count := func(pid int, uid uint32) {
		if pid != 0 && !counted[uid] {
			counted[uid] = true
			shares[uid]++
		}
	}
	for _, a := range s.table {
		clear(counted)
		for pid := range a.mappers {
			count(pid, s.processes[pid].user)
		}
	}
	for _, p := range s.pending {
		clear(counted)
		for pid, c := range p.claims {
			count(pid, c.user)
		}
	}
	return shares
}

// oldest returns the library to remove for a claim, nil if there is none. It prefers the one
// without a mapper for the longest time. If there is none, it is a library of the user with the
// most slots, if that user has at least two more than the claimant, or else one of the claimant's
// own. Of these it is one of the process with the most slots, and then the one mapped first. A
// library that several users or processes map goes as late as any of them allows.
func (s *slots) oldest(c claim) (key attachKey, found *attachment) {
	for k, a := range s.table {
		if len(a.mappers) == 0 && (found == nil || a.idle.Before(found.idle)) {
			key, found = k, a
		}
	}
	if found != nil {
		return key, found
	}
	shares := s.shares()
	var best rank
	for k, a := range s.table {
		if r, may := s.rank(a, c, shares); may && (found == nil || best.before(r)) {
			key, found, best = k, a, r
		}
	}
	return key, found
}

// A rank orders libraries by when they go.
type rank struct {
	share int           // the least share of the users that map it
	libs  int           // the least number of libraries of the processes that map it
	at    time.Duration // of its last mapping
}

func (r rank) before(o rank) bool {
	if r.share != o.share {
		return r.share < o.share
	}
	if r.libs != o.libs {
		return r.libs < o.libs
	}
	return r.at > o.at
}

// rank returns the rank of a library, and whether it may go for a claim.
func (s *slots) rank(a *attachment, c claim, shares map[uint32]int) (r rank, may bool) {
	r = rank{math.MaxInt, math.MaxInt, 0}
	for pid, at := range a.mappers {
		if pid == 0 {
			return rank{}, false
		}
		m := s.processes[pid]
		share := shares[m.user]
		if m.user == c.user && c.again || m.user != c.user && share < shares[c.user]+2 {
			return rank{}, false
		}
		r = rank{min(r.share, share), min(r.libs, len(m.libs)), max(r.at, at)}
	}
	return r, true
}
