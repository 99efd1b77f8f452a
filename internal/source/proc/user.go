package proc

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxNamespaces bounds the user namespaces that lie in each other; the kernel allows
// 32.
const maxNamespaces = 64

// User returns the user who answers for a process. That is the process's effective
// user. In a user namespace it is who made the outermost one, unless that is root:
// the maker of a namespace has thousands of users there.
// The error is os.ErrNotExist for a process that is gone.
func User(pid int) (uint32, error) {
	user, err := EffectiveUser(pid)
	if err != nil {
		return 0, err
	}
	if maker, ok := namespaceMaker(pid); ok && maker != 0 {
		return maker, nil
	}
	return user, nil
}

// EffectiveUser returns the effective user of a process: the owner of its directory, as
// task_dump_owner of Linux's fs/proc/base.c says. A status says it too, and takes the
// kernel ten times as long.
// The error is os.ErrNotExist for a process that is gone.
func EffectiveUser(pid int) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat(dirOf(pid), &st); err != nil {
		return 0, notExist(&os.PathError{Op: "stat", Path: dirOf(pid), Err: err})
	}
	return st.Uid, nil
}

const ownNamespace = "/proc/self/ns/user"

// ownNamespaceName is the name of the user namespace of this process, which stays in it.
var ownNamespaceName = sync.OnceValues(func() (string, error) { return os.Readlink(ownNamespace) })

// namespaceMaker returns who made the outermost user namespace that a process is in
// and this process is not. There is none if they are in the same.
func namespaceMaker(pid int) (uid uint32, ok bool) {
	path := dirOf(pid) + "/ns/user"
	ours, err := ownNamespaceName()
	if err != nil {
		return 0, false
	}
	if theirs, err := os.Readlink(path); err != nil || theirs == ours {
		return 0, false
	}
	var root, st unix.Stat_t
	if unix.Stat(ownNamespace, &root) != nil {
		return 0, false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer func() { unix.Close(fd) }()
	for range maxNamespaces {
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		if err != nil || unix.Fstat(parent, &st) != nil {
			return 0, false // it is not below ours
		}
		if st.Ino == root.Ino && st.Dev == root.Dev {
			unix.Close(parent)
			uid, err := unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
			return uid, err == nil
		}
		unix.Close(fd)
		fd = parent
	}
	return 0, false
}
