package leak

import (
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Holder is the object that keeps most of what a stack leaked, as the program's heap
// says.
type Holder struct {
	Name           string // the path to it, "" where that is not known
	Class          string // "" where the heap does not say more of it
	Items          int    // of a container, else 0
	Bytes, Objects int64  // of the stack, since it began to grow
	// Graph is what autograd graphs keep for the object, in bytes.
	Graph int64
}

// hold counts an allocation of the growth for the object that holds it.
func (c *candidate) hold(holder string, size int64) {
	if holder == "" {
		return
	}
	if c.holders == nil {
		c.holders = map[string]amount{}
	}
	name := container(holder)
	a := c.holders[name]
	c.holders[name] = amount{a.bytes + size, a.objects + 1}
}

// container returns the path to the container that items of a path lie in:
// trainer.history of trainer.history[*].grad_fn.
func container(path string) string {
	if i := strings.LastIndex(path, "[*]"); i > 0 {
		return path[:i]
	}
	return path
}

// holder returns the object that holds most of the growth of a stack.
func (c *candidate) holder(s *snapshot.Snapshot) Holder {
	if len(c.holders) == 0 {
		return Holder{}
	}
	names := sorting.Largest(c.holders, func(a amount) int64 { return a.bytes })
	h := Holder{Name: names[0], Bytes: c.holders[names[0]].bytes, Objects: c.holders[names[0]].objects}
	for i := range s.Heaps {
		if s.Heaps[i].PID != c.Sample.PID {
			continue
		}
		for _, x := range s.Heaps[i].Reading.Retainers {
			if x.Holder == h.Name {
				h.Class, h.Items, h.Graph = x.Class, x.Items, int64(min(x.Graph, 1<<62))
				return h
			}
		}
	}
	return h
}
