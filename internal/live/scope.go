package live

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Scope is the part of a status that is shown: a GPU, a process of it, an owner, a stack.
type Scope struct {
	GPU   *string
	PID   *int
	Owner *string
	Stack *ID
}

// holds reports whether memory of a process on a GPU is in s.
func (s *Scope) holds(pid int, gpu string) bool {
	return (s.GPU == nil || *s.GPU == gpu) && (s.PID == nil || *s.PID == pid)
}

// A Sort is the order of rows.
type Sort int

// The Sorts. Rows without the sorted figure are in the order of ByInuse.
const (
	ByInuse Sort = iota
	ByGrown
	ByRate
	ByPeak
	ByAllocated
	ByObjects
	ByName
	numSorts
)

var sortNames = [numSorts]string{"in use", "growth", "rate", "peak", "allocated", "objects", "name"}

// String returns the name of the column that s sorts by.
func (s Sort) String() string { return sortNames[s] }

// Next returns the order after s, and the first one after the last.
func (s Sort) Next() Sort { return (s + 1) % numSorts }

// Select returns the rows of p that are in scope and have text, in lower case, with stacks in
// an order, or in its reverse, and adds them up.
func (p *Status) Select(scope *Scope, text string, by Sort, reverse bool) *Status {
	part := *p
	out := &part
	out.GPUs, out.Processes, out.Owners, out.Stacks, out.Accounts = nil, nil, nil, nil, nil
	out.Total, out.OnGPUs = Total{Known: true, EventRate: p.EventRate}, Flow{}
	for i := range p.GPUs {
		if g := &p.GPUs[i]; scope.GPU == nil || *scope.GPU == g.Label {
			out.GPUs = append(out.GPUs, *g)
		}
	}
	for i := range p.Accounts {
		if a := &p.Accounts[i]; scope.holds(a.PID, a.GPU) {
			out.Accounts = append(out.Accounts, *a)
			out.Total.Held += a.Total
			out.Total.Unexplained += unexplainedOf(a)
			out.Total.Known = out.Total.Known && a.Known
		}
	}
	var on map[int]*Process
	if scope.GPU != nil {
		on = p.on(*scope.GPU)
	}
	for i := range p.Processes {
		x := p.Processes[i]
		if scope.PID != nil && *scope.PID != x.PID || scope.GPU != nil && !slices.Contains(x.GPUs, *scope.GPU) {
			continue
		}
		out.Total.Failed += x.Failed
		out.Total.OutOfMemory += x.OutOfMemory
		if scope.GPU != nil && len(x.GPUs) > 1 {
			x.restrict(on[x.PID])
		}
		out.Total.Rate += x.Rate
		out.Total.Inuse += x.Inuse
		out.Total.Grown += x.Grown
		out.Processes = append(out.Processes, x)
	}
	whose, owners := p.whose(text), render.Index[string]{}
	for _, x := range p.Stacks {
		s := x.Sample
		if !scope.holds(s.PID, s.GPU) {
			continue
		}
		flow, shown := x.flow(), scope.Owner == nil || *scope.Owner == s.Owner
		if snapshot.OnGPU(s.Kind) {
			out.OnGPUs.add(&flow)
			if shown {
				i, fresh := owners.Number(s.Owner)
				if fresh {
					out.Owners = append(out.Owners, Owner{Name: s.Owner})
				}
				out.Owners[i].add(&flow)
			}
		}
		if !shown || text != "" && !whose[s.PID] && !x.matches(text) {
			continue
		}
		if v := &s.Values; v.InuseBytes != 0 || v.PeakBytes != 0 || v.AllocBytes != 0 || v.FailedObjects != 0 {
			out.Stacks = append(out.Stacks, x)
		}
	}
	if text != "" {
		out.filter(text, whose)
	}
	out.Sort(by, reverse)
	return out
}

// on returns the figures of processes on one GPU, by PID, as far as they are known for one.
func (p *Status) on(gpu string) map[int]*Process {
	out := map[int]*Process{}
	for i := range p.Accounts {
		if a := &p.Accounts[i]; a.GPU == gpu {
			x := &Process{Held: a.Total, Unexplained: unexplainedOf(a), Known: a.Known}
			if a.Compared {
				x.Difference = &a.Difference
			}
			out[a.PID] = x
		}
	}
	for _, s := range p.Stacks {
		y := s.Sample
		if x := out[y.PID]; x != nil && y.GPU == gpu && isAllocation(y.Kind) {
			x.Inuse += y.InuseBytes
			x.Allocated += y.AllocBytes
			x.Peak += y.PeakBytes
			x.Rate += s.Rate
			x.Grown += s.Grown
		}
	}
	return out
}

// restrict restricts the figures of x to those that it has on one GPU.
func (x *Process) restrict(on *Process) {
	x.Held, x.Unexplained, x.Known, x.Difference = on.Held, on.Unexplained, on.Known, on.Difference
	x.Inuse, x.Allocated, x.Rate, x.Grown, x.Peak = on.Inuse, on.Allocated, on.Rate, on.Grown, on.Peak
}

// isAllocation reports whether memory of a kind is the program's own on a GPU.
func isAllocation(kind string) bool {
	return snapshot.OnGPU(kind) && snapshot.Class(kind) != "driver"
}

// whose returns the processes of which a user, a command line, a pod or the like has text.
func (p *Status) whose(text string) map[int]bool {
	out := map[int]bool{}
	for i := range p.Processes {
		x := &p.Processes[i]
		if text != "" && slices.ContainsFunc(x.Fields(), func(field *string) bool { return contains(*field, text) }) {
			out[x.PID] = true
		}
	}
	return out
}

// filter removes processes and owners that have neither text nor a stack.
func (p *Status) filter(text string, whose map[int]bool) {
	pids, owners := map[int]bool{}, map[string]bool{}
	for _, x := range p.Stacks {
		pids[x.Sample.PID], owners[x.Sample.Owner] = true, true
	}
	p.Processes = slices.DeleteFunc(p.Processes, func(x Process) bool {
		return !whose[x.PID] && !contains(x.Name, text) && !contains(p.Ranks[x.PID], text) && !contains(strconv.Itoa(x.PID), text) && !pids[x.PID]
	})
	p.Owners = slices.DeleteFunc(p.Owners, func(o Owner) bool {
		return !contains(o.Name, text) && !owners[o.Name]
	})
}

// Sort puts processes, owners and stacks in an order, or in the reverse of it.
func (p *Status) Sort(by Sort, reverse bool) {
	turn := 1
	if reverse {
		turn = -1
	}
	process, owner := processKeys[by], ownerKeys[by]
	sorting.Stable(p.Processes, func(a, b Process) int {
		first := 0
		if process != nil {
			first = cmp.Compare(process(&b), process(&a))
		} else if by == ByName {
			first = cmp.Compare(a.Name, b.Name)
		}
		return turn * cmp.Or(first, cmp.Compare(b.Held, a.Held), cmp.Compare(b.Inuse, a.Inuse), cmp.Compare(b.Peak, a.Peak), cmp.Compare(a.PID, b.PID))
	})
	sorting.Stable(p.Owners, func(a, b Owner) int {
		first := 0
		if owner != nil {
			first = cmp.Compare(owner(&b), owner(&a))
		} else if by == ByName {
			first = cmp.Compare(a.Name, b.Name)
		}
		return turn * cmp.Or(first, cmp.Compare(b.Inuse, a.Inuse), cmp.Compare(a.Name, b.Name))
	})
	key := stackKeys[by]
	slices.SortFunc(p.Stacks, func(a, b *Stack) int {
		if key != nil {
			if x, y := key(a), key(b); x != y {
				return turn * cmp.Compare(y, x)
			}
		} else if by == ByName {
			if c := cmp.Compare(a.Text(), b.Text()); c != 0 {
				return turn * c
			}
		}
		return turn * cmp.Or(cmp.Compare(b.Sample.InuseBytes, a.Sample.InuseBytes), cmp.Compare(a.row, b.row))
	})
}

// The figures that processes, owners and stacks are sorted by, the largest first.
var (
	processKeys = [numSorts]func(*Process) float64{
		ByGrown:     func(x *Process) float64 { return float64(x.Grown) },
		ByRate:      func(x *Process) float64 { return x.Rate },
		ByPeak:      func(x *Process) float64 { return float64(x.Peak) },
		ByAllocated: func(x *Process) float64 { return float64(x.Allocated) },
		ByObjects:   func(x *Process) float64 { return float64(x.LiveObjects) },
	}
	ownerKeys = [numSorts]func(*Owner) float64{
		ByGrown:     func(x *Owner) float64 { return float64(x.Grown) },
		ByRate:      func(x *Owner) float64 { return x.Rate },
		ByAllocated: func(x *Owner) float64 { return float64(x.Allocated) },
	}
	stackKeys = [numSorts]func(*Stack) int64{
		ByInuse:     func(x *Stack) int64 { return x.Sample.InuseBytes },
		ByGrown:     func(x *Stack) int64 { return x.Grown },
		ByRate:      func(x *Stack) int64 { return int64(x.Rate) },
		ByPeak:      func(x *Stack) int64 { return x.Sample.PeakBytes },
		ByAllocated: func(x *Stack) int64 { return x.Sample.AllocBytes },
		ByObjects:   func(x *Stack) int64 { return x.Sample.InuseObjects },
	}
)
