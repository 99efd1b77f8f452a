package probes

import (
	"math"
	"time"
)

// The users of a machine (see userOf) share the table of probed files. No share is fixed: one user may have
// all of it until another user needs a place. Then the user with the most files loses the oldest.
// If that is the user who needs one, the process with the most files loses it. So a process that
// maps a thousand libraries first costs itself its probes, then other processes of its user, and
// nobody else.
//
// The kernel puts probes on an inode, so two files of equal content count twice.

const (
	// maxClosing bounds the libraries that lose their probes to make room.
	maxClosing = maxAttachments / 4
	// maxUserClosing bounds those that do so for one user's claims.
	maxUserClosing = maxClosing / 4
)

// makeRoom reports whether there is room for one more file, for a claim. It returns the one that
// it removed for that, if any.
func (l *libraries) makeRoom(c claim) (old *probedFile, ok bool) {
	if len(l.table) < l.max {
		return nil, true
	}
	forUser := 0
	for _, user := range l.closing {
		if user == c.user {
			forUser++
		}
	}
	if len(l.closing) >= maxClosing || forUser >= maxUserClosing {
		return nil, false
	}
	if old = l.oldest(c); old == nil {
		return nil, false
	}
	delete(l.table, old.key)
	if old.attachment == nil {
		return nil, true
	}
	for pid, m := range old.mappers {
		l.unseen.add(pid, m.user, noSlot, m.at, time.Now())
	}
	l.closing[old] = c.user
	return old, true
}

// shares returns the number of files of each user and of each process.
func (l *libraries) shares() (users map[uint32]int, processes map[int]int) {
	users, processes = map[uint32]int{}, map[int]int{}
	for _, f := range l.table {
		counted := map[uint32]bool{}
		for pid, m := range f.mappers {
			processes[pid]++
			if pid != 0 && !counted[m.user] {
				counted[m.user] = true
				users[m.user]++
			}
		}
	}
	return users, processes
}

// oldest returns the file to remove for a claim, nil if there is none. It prefers the one
// without a mapper for the longest time. If there is none, it is one of the user with the
// most, if that user has at least two more than the claimant, or else one of the claimant's
// own. Of these it is one of the process with the most, and then the one mapped first. A
// file that several users or processes map goes as late as any of them allows.
func (l *libraries) oldest(c claim) (found *probedFile) {
	for _, f := range l.table {
		if len(f.mappers) == 0 && !f.pending() && (found == nil || f.idle.Before(found.idle)) {
			found = f
		}
	}
	if found != nil {
		return found
	}
	users, processes := l.shares()
	var best rank
	for _, f := range l.table {
		if r, may := f.rank(c, users, processes); may && (found == nil || best.before(r)) {
			found, best = f, r
		}
	}
	return found
}

// A rank orders files by when they go.
type rank struct {
	share int           // the least share of the users that map it
	files int           // the least number of files of the processes that map it
	at    time.Duration // of its last mapping
}

func (r rank) before(o rank) bool {
	if r.share != o.share {
		return r.share < o.share
	}
	if r.files != o.files {
		return r.files < o.files
	}
	return r.at > o.at
}

// rank returns the rank of a file, and whether it may go for a claim.
func (f *probedFile) rank(c claim, users map[uint32]int, processes map[int]int) (r rank, may bool) {
	if f.pending() {
		return rank{}, false
	}
	r = rank{math.MaxInt, math.MaxInt, 0}
	for pid, m := range f.mappers {
		share := users[m.user]
		if pid == 0 || m.user == c.user && c.again || m.user != c.user && share < users[c.user]+2 {
			return rank{}, false
		}
		r = rank{min(r.share, share), min(r.files, processes[pid]), max(r.at, m.at)}
	}
	return r, true
}
