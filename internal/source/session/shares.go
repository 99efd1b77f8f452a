package session

import (
	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// maxUsers bounds the processes whose user is remembered.
const maxUsers = 4096

// Users tell whose processes are.
type users struct {
	known *lru.Cache[event.Process, uint32]
	read  func(pid int) (uint32, error)
}

func newUsers() *users {
	return &users{lru.New[event.Process, uint32](maxUsers, nil), func(pid int) (uint32, error) {
		s, err := proc.ReadStatus(pid)
		return s.User, err
	}}
}

func (u *users) of(id event.Process) (user uint32, known bool) {
	if user, known = u.known.Get(id); known {
		return user, true
	}
	user, err := u.read(int(id.PID))
	if err != nil {
		return 0, false
	}
	u.known.Put(id, user)
	return user, true
}

// mayShare tells whether a process may come to hold what another one lets go, because it
// says that it shares that. The kernel driver lets processes of one user share memory. What
// is seen of its calls is what the caller shows of them: without this, a process could take
// the memory of another user's processes over in the figures, or give its own away.
func (u *users) mayShare(sharer, owner event.Process) bool {
	if sharer == owner {
		return true
	}
	const root = 0
	a, known := u.of(sharer)
	if known && a == root {
		return true
	}
	b, too := u.of(owner)
	return known && too && a == b
}

// checkShare takes the object that e shares out of it if that is another user's. Events
// come from one goroutine.
func (s *Session) checkShare(e *event.Event) {
	s.mu.Lock()
	owner, known := s.state.ShareOwner(e)
	s.mu.Unlock()
	if known && !s.users.mayShare(e.Proc, owner) {
		e.Addr = 0
	}
}
