package bpf

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A Target is struct gm_target of users.h, the value of the map targets.
type Target struct {
	User, Shed  uint32
	Bytes, Lost uint64
}

// A User is struct gm_user, the value of the map users.
type User struct {
	Sent, Lost uint64
	_          [6]uint64
	Read, Shed uint64
	Changes    uint64
	_          [5]uint64
}

// MaxUsers is GM_USERS of users.h, UserTries GM_USER_TRIES, ShedAll GM_SHED_ALL.
const (
	MaxUsers  = 1024
	UserTries = 8
	ShedAll   = 2
)

// UserOf returns the place in the map users of a traced process's user, and whether the process has no
// stacks. The place is 0 for a process that is not traced.
func UserOf(targets, users *ebpf.Map, pid int) (user uint16, shed bool) {
	var t Target
	if targets.Lookup(uint32(pid), &t) != nil {
		return 0, false
	}
	level := uint64(t.Shed)
	if b, err := users.LookupBytes(t.User); err == nil && b != nil {
		level = max(level, binary.NativeEndian.Uint64(b[unsafe.Offsetof(User{}.Shed):]))
	}
	return uint16(t.User), level >= ShedAll
}

// Users are the values of the map users, in memory that this process and the kernel side share. The
// memory is valid as long as the Users are reachable.
type Users struct{ Places []User }

// MapUsers returns the Users of a map.
func MapUsers(m *ebpf.Map) (*Users, error) {
	memory, err := unix.Mmap(m.FD(), 0, MaxUsers*int(unsafe.Sizeof(User{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the table of users: %w", err)
	}
	u := &Users{unsafe.Slice((*User)(unsafe.Pointer(unsafe.SliceData(memory))), MaxUsers)}
	runtime.AddCleanup(u, func(memory []byte) { _ = unix.Munmap(memory) }, memory)
	return u, nil
}

// TargetChanged makes the kernel side look at targets again.
func (u *Users) TargetChanged() { atomic.AddUint64(&u.Places[0].Changes, 1) }

// MarkRead marks a record of a user as read, which frees its part of the ring buffer.
func (u *Users) MarkRead(place uint16, record []byte) {
	const header = 8
	if int(place) < len(u.Places) {
		atomic.AddUint64(&u.Places[place].Read, uint64((len(record)+7)&^7+header))
	}
}
