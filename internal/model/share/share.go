// Package share divides a table with a limit among the processes that have entries in
// it, and among the users that these run as. As long as there is room, everybody takes
// as much as they want. When the table is full, whoever holds less than a fair share
// still gets an entry, and those that hold more give entries back, first of all the user
// that holds most, and of that user the process that holds most.
//
// A fair share is a level: all who hold more are brought down to it, and nobody else
// loses anything. It is found anew only after a sixteenth of the table was given out
// again, so that making room costs little for each entry.
package share

import (
	"math"
	"slices"
)

// A Table counts the entries of all holders. Owner is what its user keeps of a process.
type Table[Owner any] struct {
	pool
	max  int
	take func(Owner, int)
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
	at  int // index into Table.all
	id  uint32
	one bool // a process whose user is not known
	all []*Share[Owner]
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

// New returns a Table for max entries. take is called for a process that is to give so
// many entries back, with Add.
func New[Owner any](max int, take func(owner Owner, n int)) *Table[Owner] {
	return &Table[Owner]{max: max, take: take, by: map[uint32]*user[Owner]{}}
}

// Held returns how many entries there are.
func (t *Table[Owner]) Held() int { return t.n }

// Full tells whether no entry is free.
func (t *Table[Owner]) Full() bool { return t.n >= t.max }

// Join makes s the Share of a process whose user is not known yet.
func (t *Table[Owner]) Join(s *Share[Owner], owner Owner) {
	s.owner, s.table = owner, t
	s.enter(&user[Owner]{one: true})
}

// Of says which user a process runs as.
func (s *Share[Owner]) Of(id uint32) {
	t := s.table
	if t == nil || !s.user.one && s.user.id == id {
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

// Beside tells whether two processes are the same user's, or no user is known of both.
func (s *Share[Owner]) Beside(o *Share[Owner]) bool {
	return s.table != nil && o.table != nil && (s.user == o.user || s.user.one && o.user.one)
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
		if !u.one {
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

// Lose counts n entries that the process was refused, or gave back.
func (s *Share[Owner]) Lose(n int) { s.lost += uint64(n) }

// Lost returns how many entries the process was refused, or gave back.
func (s *Share[Owner]) Lost() uint64 { return s.lost }

// Room tells whether the process may have k entries more, and has others give entries
// back if that takes it.
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

// admit tells whether a member that has n entries may have k more of a pool for size
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
	if p.n > size-k { // nobody has anything to give back
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
				t.take(s.owner, min(s.n, u.n-level))
			}
		}
	}
}

// trim has each process of a user give back what it has beyond level.
func (t *Table[Owner]) trim(u *user[Owner], level int) {
	for _, s := range u.all {
		if n := s.n - level; n > 0 {
			t.take(s.owner, n)
		}
	}
}

// Short yields the processes that were refused entries, or gave some back.
func (t *Table[Owner]) Short(yield func(Owner, *Share[Owner]) bool) {
	for _, u := range t.all {
		for _, s := range u.all {
			if s.lost > 0 && !yield(s.owner, s) {
				return
			}
		}
	}
}

// Mix returns a number that looks like any, for a and b: whoever gives entries back picks
// those whose numbers are highest, or lowest, which is a fair sample of all and the same
// one each time. It is splitmix64.
func Mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 + b
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
