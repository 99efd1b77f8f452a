package timeline

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A role is how the bytes of a leaf count in what a process holds on a GPU.
type role uint8

const (
	roleOther   role = iota // memory that is on no GPU
	rolePlain               // an allocation or a tensor: part of what the kernel driver handed out
	roleAsync               // the same, in a pool
	roleTaken               // handed out by the kernel driver
	roleBacking             // handed out by the kernel driver for allocations
	rolePool                // handed out by the kernel driver for pools
	roleOutside             // tensors in memory that was not seen allocated
	roleBeyond              // memory of a process on a GPU that no call site has
	roleCall                // of roleBacking, what calls took that have not returned
	numRoles
)

func roleOf(k event.Kind) role {
	switch {
	case k == event.KindAsync:
		return roleAsync
	case k == event.KindBacking:
		return roleBacking
	case k == event.KindPool:
		return rolePool
	case k.Class() == event.ClassDevice, k.Class() == event.ClassTensor:
		return rolePlain
	case k.Class() == event.ClassDriver:
		return roleTaken
	}
	return roleOther
}

// A leaf has bytes over time: a call site, or what a process holds beyond its call sites.
type leaf struct {
	key    ledger.SiteKey
	role   role
	gpu    string // label, as far as it is known
	cached bool   // tensors are handed out of it: its bytes are those in no tensor
	sample *snapshot.Sample
}

const unknownGPU = "unknown"

// total returns the total that a leaf is part of, negative for none: of memory that lies in
// what the kernel driver handed out, only the latter counts.
func (w *run) total(i int32) int {
	l := &w.leaves[i]
	if l.gpu == "" || l.gpu == unknownGPU {
		if l.role != roleBeyond && w.State != nil && w.State.IsAlive(l.key.Proc) {
			l.gpu = w.State.GPU(&l.key)
		}
	}
	name := l.gpu
	switch l.role {
	case rolePlain, roleAsync:
		if w.sees(l.key.Proc) {
			return -1
		}
	case roleBacking, rolePool, roleTaken, roleBeyond:
	case roleOutside, roleCall:
		return -1
	default:
		name = l.key.Kind.Class().String()
	}
	n, _ := w.totals.Number(name)
	return n
}

// sees is state.Sees of a process that may have ended.
func (w *run) sees(id event.Process) bool {
	if w.State.IsAlive(id) {
		return w.State.SeesDriverCalls(id)
	}
	return w.seen[id].seen
}

// newLeaf returns a new leaf, or a negative number where there is no room.
func (w *run) newLeaf(key ledger.SiteKey, r role, gpu string) int32 {
	if len(w.leaves) >= maxLeaves {
		return -1
	}
	w.leaves = append(w.leaves, leaf{key: key, role: r, gpu: gpu})
	return int32(len(w.leaves) - 1)
}

// meet returns the leaf of a new site: its own, or where there are too many one for all of
// its process, GPU and kind.
func (w *run) meet(site *ledger.Site) int32 {
	leaf := w.newLeaf(site.SiteKey, roleOf(site.Kind), "")
	if leaf < 0 {
		leaf = w.sharedLeaf(site)
	}
	if site.Kind == event.KindTensor {
		w.lives.name(site.Proc, site.Stack, leaf)
	}
	return leaf
}

func (w *run) sharedLeaf(site *ledger.Site) int32 {
	w.lost.Add(lossSites, 1)
	key := ledger.SiteKey{Proc: site.Proc, Kind: site.Kind, Device: site.Device}
	i, ok := w.full[key]
	if !ok {
		i = int32(len(w.leaves))
		w.leaves = append(w.leaves, leaf{key: key, role: roleOf(key.Kind)})
		w.full[key] = i
	}
	return i
}
