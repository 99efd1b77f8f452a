package session

import (
	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// maxUsers bounds the processes whose user is kept.
const maxUsers = 4096

// users finds the users of processes.
type users struct {
	known *lru.Cache[event.Process, uint32]
	read  func(pid int) (uint32, error)
}

func newUsers() *users {
	return &users{lru.New[event.Process, uint32](maxUsers, nil), proc.EffectiveUser}
}

func (u *users) of(id event.Process) (user uint32, known bool) {
	if user, known = u.known.Get(id); known {
		return user, true
	}
	user, err := u.read(int(id.PID))
	if err != nil {
		return 0, false
	}
	u.known.Add(id, user)
	return user, true
}

// mayShare reports whether one process may share memory of another one. The kernel driver allows it
// to processes of one user. The tracer sees only the caller's arguments. Without this check a
// process could make the figures show another user's memory as its own, or its own as another user's.
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
