package physical

import (
	"maps"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// kernel is NVIDIA's kernel driver, as far as it says what a process has: objects in
// a map, no cleverness. Names are the kernel's own, of all processes.
type kernel struct {
	objects map[uint64]*resource
}

// A resource is an object of the kernel driver (RsResourceRef).
type resource struct {
	name, parent uint64
	proc         event.Process // of a client: who made it (RmClient.ProcID)
	descriptor   uint64        // of a client
	gpu          uint32        // of a device
	memory       bool
	size         uint64      // Memory.Length
	owner        bool        // Memory.isMemDescOwner
	told         bool        // the call that made it has returned
	ring         []*resource // Memory.dupListItem: the others, from pNext on
}

// under returns whether there can be a new object with a name, under a parent.
func (k *kernel) under(name, parent uint64) bool {
	above := k.objects[parent]
	return k.objects[name] == nil && above != nil && !above.memory && clientOf(name) == clientOf(parent)
}

// dup is memCopyConstruct: a new one comes behind its source.
func (k *kernel) dup(r, source *resource) {
	r.memory, r.size = true, source.size
	r.ring = append(slices.Clone(source.ring), source)
	for _, x := range source.ring {
		i := slices.Index(x.ring, source)
		x.ring = slices.Insert(x.ring, i+1, r)
	}
	source.ring = slices.Insert(source.ring, 0, r)
}

// free is that of a resource with all below it. Of memory it is memDestructCommon:
// the next of the ring becomes the owner.
func (k *kernel) free(name uint64) {
	for _, child := range slices.Collect(maps.Values(k.objects)) {
		if child.parent == name && child.name != name {
			k.free(child.name)
		}
	}
	r := k.objects[name]
	delete(k.objects, name)
	if r == nil || !r.memory {
		return
	}
	if r.owner && len(r.ring) > 0 {
		r.ring[0].owner = true
	}
	for _, x := range r.ring {
		x.ring = slices.DeleteFunc(x.ring, func(y *resource) bool { return y == r })
	}
}

func (k *kernel) freeClients(which func(*resource) bool) {
	for _, r := range slices.Collect(maps.Values(k.objects)) {
		if r.name == clientOf(r.name) && which(r) {
			k.free(r.name)
		}
	}
}

// device returns what a resource is on.
func (k *kernel) device(r *resource) *resource {
	for ; r != nil; r = k.objects[r.parent] {
		if r.gpu != 0 {
			return r
		}
	}
	return nil
}

// taken is what NVML says of a process: memPrivate and memSharedOwned of
// _gpuCollectMemInfo, by GPU.
func (k *kernel) taken(p event.Process) map[uint32]int64 {
	out := map[uint32]int64{}
	for _, r := range k.objects {
		if r.memory && k.objects[clientOf(r.name)].proc == p && (len(r.ring) == 0 || r.owner) {
			if d := k.device(r); d != nil {
				out[d.gpu] += int64(r.size)
			}
		}
	}
	return out
}
