package probes

import (
	"fmt"
	"math"
	"time"
)

// The users of a machine share the slots for probed libraries. No share is fixed: one
// user may have every slot until another needs one. Then the user with the most of
// them gives up the oldest. If that is the user who needs one, the process with the
// most gives it up. So a process that maps a thousand libraries takes probes from
// itself first, then from other processes of its user, and from nobody else.
//
// A slot is one file. The kernel puts probes on an inode, so that two files of equal
// content need a slot each, and each counts against its user.

const (
	// maxClosing bounds the libraries whose probes are coming off to make room.
	maxClosing = maxAttachments / 4
	// maxUserClosing bounds those that go for the claims of one user.
	maxUserClosing = maxClosing / 4
	// refusal is how long a file that could not be traced is not looked at
	// again. Its inode number may mean another file later.
	refusal = 10 * time.Second
	// maxRefused bounds the files of one user that are not looked at again.
	maxRefused = 64
	// maxUsers bounds the users who are told apart.
	maxUsers = 4096
)

// A user is somebody whose processes map libraries of CUDA's.
type user struct {
	refused  map[attachKey]time.Time // until when
	unseen   int                     // processes
	more     bool                    // unseen does not count all of them
	closing  int                     // whose probes are coming off for a claim of this user
	warnings budget
}

// others are all users beyond maxUsers, under the number that is no user's.
const others = 1<<32 - 1

// user returns what is known of a user.
func (l *attachments) user(uid uint32) *user {
	u := l.users[uid]
	if u == nil && len(l.users) >= maxUsers {
		uid = others
		u = l.users[uid]
	}
	if u == nil {
		u = &user{refused: map[attachKey]time.Time{}}
		l.users[uid] = u
	}
	return u
}

// forgetUsers forgets the users of whom nothing need be known.
func (l *attachments) forgetUsers(now time.Time) {
	for uid, u := range l.users {
		for key, until := range u.refused {
			if !now.Before(until) {
				delete(u.refused, key)
			}
		}
		if len(u.refused) == 0 && u.unseen == 0 && u.closing == 0 && u.warnings.full(now) {
			delete(l.users, uid)
		}
	}
}

// refuse has a file not looked at for a while. With too many, one that is looked at
// again soonest goes.
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

// makeRoom tells whether one more library may be probed for a claim. It returns the
// library that is to go for it, if one must, and whose processes map that.
func (l *attachments) makeRoom(c claim) (old *attachment, lost []claim, ok bool) {
	if len(l.table)+len(l.pending) < l.max {
		return nil, nil, true
	}
	u := l.user(c.user)
	if l.closing >= maxClosing || u.closing >= maxUserClosing {
		return nil, nil, false
	}
	key, old := l.oldest(c)
	if old == nil {
		return nil, nil, false
	}
	delete(l.table, key)
	for pid, at := range old.mappers {
		m := l.processes[pid]
		delete(m.libs, key)
		lost = append(lost, claim{pid: pid, user: m.user})
		l.miss(pid, m.user, noSlot, at, time.Now())
	}
	l.closing++
	u.closing++
	old.evictor = u
	return old, lost, true
}

// closed says that the probes of a library that was removed are off.
func (l *attachments) closed(a *attachment) {
	l.closing--
	if a.evictor != nil {
		a.evictor.closing--
		a.evictor = nil
	}
}

// shares returns how many probed libraries the processes of each user map, those
// included that are being probed.
func (l *attachments) shares() map[uint32]int {
	shares := map[uint32]int{}
	counted := map[uint32]bool{}
	for _, a := range l.table {
		clear(counted)
		for pid := range a.mappers {
			if uid := l.processes[pid].user; pid != 0 && !counted[uid] {
				counted[uid] = true
				shares[uid]++
			}
		}
	}
	for _, p := range l.pending {
		clear(counted)
		for pid, c := range p.claims {
			if pid != 0 && !counted[c.user] {
				counted[c.user] = true
				shares[c.user]++
			}
		}
	}
	return shares
}

// oldest returns the library whose probes are to go for a claim, nil if there is none.
// Of those that nobody maps it is the one idle for longest. If there are none, it is
// one of the user with the most libraries, provided that this user has at least two
// more than the claimant, or else one of the claimant's own. Of these it is one of the
// process with the most, and then the one that was mapped first. A library that several
// users or processes map goes as late as any of them allows.
func (l *attachments) oldest(c claim) (key attachKey, found *attachment) {
	for k, a := range l.table {
		if len(a.mappers) == 0 && (found == nil || a.idle.Before(found.idle)) {
			key, found = k, a
		}
	}
	if found != nil {
		return key, found
	}
	shares := l.shares()
	var best rank
	for k, a := range l.table {
		if r, may := l.rank(a, c, shares); may && (found == nil || best.before(r)) {
			key, found, best = k, a, r
		}
	}
	return key, found
}

// A rank says how soon a library goes.
type rank struct {
	share int           // of the user, of those that map it, who has the least
	libs  int           // that the process maps, of those that map it, which maps the least
	at    time.Duration // when it was mapped last
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

// rank ranks a library, and tells whether it may go for a claim.
func (l *attachments) rank(a *attachment, c claim, shares map[uint32]int) (r rank, may bool) {
	r = rank{math.MaxInt, math.MaxInt, 0}
	for pid, at := range a.mappers {
		if pid == 0 {
			return rank{}, false
		}
		m := l.processes[pid]
		share := shares[m.user]
		if m.user == c.user && c.again || m.user != c.user && share < shares[c.user]+2 {
			return rank{}, false
		}
		r = rank{min(r.share, share), min(r.libs, len(m.libs)), max(r.at, at)}
	}
	return r, true
}

// evicted takes the probes off a library that makeRoom removed, for a claim.
func (t *Tracer) evicted(old *attachment, lost []claim) {
	go t.takeOff(old)
	if len(lost) == 0 {
		return
	}
	t.loss.Add(lossEvicted, 1)
	c := lost[0]
	text := fmt.Sprintf("process %d of user %d is not traced in full any more: %s lost its probes, because more libraries are mapped than can be probed and this user maps the most", c.pid, c.user, old.library.Path)
	t.warnOf(c.user, text)
}
