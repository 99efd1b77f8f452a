package tenant

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// groupBit is set in the number of a tenant that is a control group. Others are users. A user
// whose number has the bit is a tenant like any other, unless a control group has the same number.
const groupBit = 1 << 31

// maxNames bounds the control groups whose names are remembered, those met last.
const maxNames = 4096

var (
	namesMu sync.Mutex
	names   = lru.New[uint32, string](maxNames, nil)
)

// NumberOf returns the number of the tenant that a process belongs to. That is the outermost of
// a container or pod, a job and a user's slice, by its control groups. So groups that a tenant
// makes below its own count as its own. Where no control group tells, it is proc.User. The error
// is os.ErrNotExist for a process that is gone.
func NumberOf(pid int) (uint32, error) {
	groups, err := proc.Cgroups(pid)
	if err != nil {
		return 0, err
	}
	if n, known := numberIn(groups); known {
		return n, nil
	}
	return proc.User(pid)
}

// numberIn returns the number of the tenant that control groups tell, if they do.
func numberIn(groups []proc.Cgroup) (n uint32, known bool) {
	for _, g := range ranked(groups) {
		group, uid, isUser := outermost(g.Path)
		if isUser {
			return uid, true
		}
		if group != "" {
			h := fnv.New32a()
			_, _ = h.Write([]byte(group)) // it never fails
			n := h.Sum32() | groupBit
			namesMu.Lock()
			names.Add(n, "control group "+Bounded(group))
			namesMu.Unlock()
			return n, true
		}
	}
	return 0, false
}

// Name names a tenant, for people.
func Name(number uint32) string {
	namesMu.Lock()
	defer namesMu.Unlock()
	if name, ok := names.Get(number); ok {
		return name
	}
	return fmt.Sprintf("user %d", number)
}

// outermost returns the path of the outermost control group of a path that is a tenant's, "" for
// none, or the user whose slice it is.
func outermost(path string) (group string, uid uint32, isUser bool) {
	top := path
	for strings.HasPrefix(top, "/../") { // out of this process's cgroup namespace
		top = top[len("/.."):]
	}
	if rest, ok := strings.CutPrefix(top, "/user.slice/user-"); ok {
		digits, _, ok := strings.Cut(rest, ".slice")
		if n, err := strconv.ParseUint(digits, 10, 32); ok && err == nil {
			return "", uint32(n), true
		}
	}
	for begin := 0; begin < len(path); {
		end := len(path)
		if at := strings.IndexByte(path[begin+1:], '/'); at >= 0 {
			end = begin + 1 + at
		}
		if p := parsePath(path[:end]); p.container != "" || p.pod != "" || p.job != "" {
			return path[:end], 0, false
		}
		if delegated(path[begin+1 : end]) {
			break
		}
		begin = end
	}
	return "", 0, false
}

// delegated reports whether those in a control group, which is neither a container nor a job, may
// make others below it. Then they could take any name for a tenant: a service (with systemd's
// Delegate=), a session or machine, a container of LXC.
func delegated(name string) bool {
	return strings.HasSuffix(name, ".service") || strings.HasPrefix(name, "lxc") ||
		strings.HasSuffix(name, ".scope") && !strings.HasSuffix(name, "slurmstepd.scope")
}
