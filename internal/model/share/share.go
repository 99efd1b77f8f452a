// Package share divides a table with a limit among the processes that have entries in
// it, and among the users that these run as. As long as there is room, every process gets
// as many entries as it asks for. When the table is full, a process below its fair share
// still gets an entry, and those above theirs give entries back: first those of the user
// that has most, and of that user the process that has most.
//
// A fair share is a level. The invariant: those above it are brought down to it, and no
// other process loses anything. The level is computed again only after a sixteenth of the
// table was given out again, so that making room costs little for each entry.
package share

import (
	"math"
	"slices"
)

// A Table counts the entries of all processes. Owner is the caller's type for a process.
type Table[Owner any] struct {
	pool
	max  int
	give func(Owner, int)
	all  []*user[Owner]
	by   map[uint32]*user[Owner]

	scratch []int
}

// A Share is what one process holds of a Table.
type Share[Owner any] struct {
	owner Owner
	table *Table[Owner]
	user  *user[Owner]
	at    int // index into user.all
	n     int
	lost  uint64
}

// A user is one user's processes. A process whose user is not known is a user by itself.
type user[Owner any] struct {
	pool
	at      int // index into Table.all
	id      uint32
	unknown bool // a process whose user is not known
	all     []*Share[Owner]
}

// A pool is what its members share: users that share a table, or processes that share
// what one user has of it.
type pool struct {
	n     int  // entries of all members
	known bool // level is
	level int  // the fair share of a member when it was found last
	tight bool // members gave entries back then: none may have more than level
	size  int  // of the pool when level was found
	low   int  // the least entries since then
}

// New returns a Table for max entries. give is called to make a process give n entries
// back, with Add.
func New[Owner any](max int, give func(owner Owner, n int)) *Table[Owner] {
	return &Table[Owner]{max: max, give: give, by: map[uint32]*user[Owner]{}}
}

// Len returns how many entries there are.
func (t *Table[Owner]) Len() int { return t.n }

// Full returns whether no entry is free.
func (t *Table[Owner]) Full() bool { return t.n >= t.max }

// Join makes s the Share of a process whose user is not known yet.
func (t *Table[Owner]) Join(s *Share[Owner], owner Owner) {
	s.owner, s.table = owner, t
	s.enter(&user[Owner]{unknown: true})
}

// SetUser sets which user a process runs as.
func (s *Share[Owner]) SetUser(id uint32) {
	t := s.table
	if t == nil || !s.user.unknown && s.user.id == id {
		return
	}
	u := t.by[id]
	if u == nil {
		u = &user[Owner]{id: id}
		t.by[id] = u
	}
	n := s.n
	s.Add(-n)
	s.exit()
	s.enter(u)
	s.Add(n)
}

// SameUser returns whether two processes are of the same user, or neither has a known user.
func (s *Share[Owner]) SameUser(o *Share[Owner]) bool {
	return s.table != nil && o.table != nil && (s.user == o.user || s.user.unknown && o.user.unknown)
}

// Leave ends s, with all that it holds.
func (s *Share[Owner]) Leave() {
	if s.table != nil {
		s.Add(-s.n)
		s.exit()
		s.table = nil
	}
}

func (s *Share[Owner]) enter(u *user[Owner]) {
	t := s.table
	if len(u.all) == 0 {
		u.at = len(t.all)
		t.all = append(t.all, u)
	}
	s.user, s.at = u, len(u.all)
	u.all = append(u.all, s)
}

func (s *Share[Owner]) exit() {
	t, u := s.table, s.user
	last := len(u.all) - 1
	u.all[s.at] = u.all[last]
	u.all[s.at].at = s.at
	u.all[last] = nil
	u.all = u.all[:last]
	u.tight, u.known = false, false // there is more for the others
	if last == 0 {
		t.tight, t.known = false, false
		last = len(t.all) - 1
		t.all[u.at] = t.all[last]
		t.all[u.at].at = u.at
		t.all[last] = nil
		t.all = t.all[:last]
		if !u.unknown {
			delete(t.by, u.id)
		}
	}
}

// Add counts n entries more, or fewer.
func (s *Share[Owner]) Add(n int) {
	if s.table != nil {
		s.n += n
		s.user.add(n)
		s.table.add(n)
	}
}

func (p *pool) add(n int) {
	p.n += n
	p.low = min(p.low, p.n)
}

// Len returns how many entries the process holds.
func (s *Share[Owner]) Len() int { return s.n }

// AddLost counts n entries that the process was refused, or gave back.
func (s *Share[Owner]) AddLost(n int) { s.lost += uint64(n) }

// Lost returns how many entries the process was refused, or gave back.
func (s *Share[Owner]) Lost() uint64 { return s.lost }

// Room returns whether the process may have k more entries. It makes others give entries
// back for them if it must.
func (s *Share[Owner]) Room(k int) bool {
	t, u := s.table, s.user
	if t == nil || t.n+k <= t.max && !t.tight && !u.tight {
		return true
	}
	if u.tight && !t.tight && t.n <= t.max-2*spare(t.max) {
		u.tight = false // what the user shared out was another's, who has left
	}
	ok := t.admit(t.max, u.n, k, t.users, t.trimUsers)
	if ok {
		ok = !u.tight || u.admit(math.MaxInt, s.n, k, nil, nil)
	} else if len(u.all) > 1 {
		ok = u.admit(u.n, s.n, k, func() []int { return t.members(u) }, func(level int) { t.trim(u, level) }) && t.n+k <= t.max
	}
	return ok
}

// admit returns whether a member that has n entries may have k more of a pool for size
// entries. If the pool is full and the member has less than its share, trim is called to
// bring all others down to a level.
func (p *pool) admit(size, n, k int, members func() []int, trim func(level int)) bool {
	if p.tight {
		if p.n <= p.size-2*spare(p.size) {
			p.tight, p.known = false, false
		} else if n+k > p.level {
			return false
		}
	}
	if p.n <= size-k {
		return true
	}
	if p.known && n+k > p.level && p.n-p.low <= p.size/64 {
		return false // and nothing is another than when level was found
	}
	p.known, p.level, p.size, p.low = true, fill(members(), size-spare(size)), size, p.n
	if n+k > p.level {
		return false
	}
	p.tight = true
	trim(p.level)
	if p.n > size-k { // no member has anything to give back
		p.tight, p.level, p.low = false, n, p.n
		return false
	}
	return true
}

// spare returns how many of the entries of a full pool are made free at once.
func spare(size int) int { return max(size/16, 1) }

// fill returns the level, at least 1, at which members that have n entries each have no
// more than size together if none has more than the level. It sorts n.
func fill(n []int, size int) int {
	slices.Sort(n)
	for i, x := range n {
		level := size / (len(n) - i)
		if x > level {
			return max(level, 1)
		}
		size -= x
	}
	return math.MaxInt
}

// users returns how many entries each user has.
func (t *Table[Owner]) users() []int {
	t.scratch = t.scratch[:0]
	for _, u := range t.all {
		t.scratch = append(t.scratch, u.n)
	}
	return t.scratch
}

// members returns how many entries each process of a user has.
func (t *Table[Owner]) members(u *user[Owner]) []int {
	t.scratch = t.scratch[:0]
	for _, s := range u.all {
		t.scratch = append(t.scratch, s.n)
	}
	return t.scratch
}

// trimUsers has each user give back what it has beyond level.
func (t *Table[Owner]) trimUsers(level int) {
	for _, u := range t.all {
		if u.n <= level {
			continue
		}
		t.trim(u, fill(t.members(u), level))
		// There may be more processes than the user's share has entries.
		for i := len(u.all) - 1; i >= 0 && u.n > level; i-- {
			if s := u.all[i]; s.n > 0 {
				t.give(s.owner, min(s.n, u.n-level))
			}
		}
	}
}

// trim has each process of a user give back what it has beyond level.
func (t *Table[Owner]) trim(u *user[Owner], level int) {
	for _, s := range u.all {
		if n := s.n - level; n > 0 {
			t.give(s.owner, n)
		}
	}
}

// Shortages yields the processes that were refused entries, or gave some back.
func (t *Table[Owner]) Shortages(yield func(Owner, *Share[Owner]) bool) {
	for _, u := range t.all {
		for _, s := range u.all {
			if s.lost > 0 && !yield(s.owner, s) {
				return
			}
		}
	}
}

// Mix returns a pseudo-random number for a and b. To give entries back, pick those whose
// numbers are highest, or lowest: a fair sample of all, and the same one each time. It is
// splitmix64.
func Mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 + b
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
