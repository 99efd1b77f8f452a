// Package holders writes what a reading of a heap found: which object keeps each tensor.
// It has one table for each view, and each format writes that table.
package holders

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// A Report is what is shown of one reading, or of what changed between two.
type Report struct {
	PID     int
	Process string // its name
	Reading *holder.Reading
	// Before is an earlier reading of the same process: the report has what came and went
	// since. It is nil for a report of one reading.
	Before *holder.Reading
	// OnGPUs is what the process holds on all GPUs, in bytes, as NVIDIA's driver says; 0 if that is not
	// known.
	OnGPUs int64
	By     By
	CPU    bool // also show tensors in the CPU's memory
	// Divided is whether the report is of the segments of PyTorch's allocators.
	Divided bool
}

// Refusal says why there is nothing to show, "" if there is something.
func (r *Report) Refusal() string {
	all := r.Reading
	switch {
	case all.Refused != "":
		return all.Refused
	case r.Divided && len(all.Allocators) > 0:
		return ""
	case r.Divided:
		return cmp.Or(all.NoAllocators, "PyTorch's allocator was not found")
	case r.Before != nil && (len(r.Before.Storages) > 0 || len(all.Storages) > 0):
		return ""
	case len(all.Storages) == 0:
		why := []string{fmt.Sprintf("no tensor was found among %d objects of %s", all.Objects, runtime(all))}
		if all.NoAllocators != "" {
			why = append(why, all.NoAllocators)
		}
		for _, c := range all.Loss {
			if c.Value > 0 {
				why = append(why, fmt.Sprintf("%d %s", c.Value, c.Help))
			}
		}
		return strings.Join(why, "; ")
	case len(r.storages(all)) == 0:
		return fmt.Sprintf("all %s of tensors lie in the CPU's memory: show them with --cpu", bytefmt.Format(total(which(all, (*holder.Storage).OnCPU))))
	}
	return ""
}

// storages returns those of a reading that the report shows.
func (r *Report) storages(of *holder.Reading) []*holder.Storage {
	return which(of, func(s *holder.Storage) bool { return r.CPU || !s.OnCPU() })
}

// arrays returns the storages of JAX's arrays.
func (r *Report) arrays() []*holder.Storage {
	return which(r.Reading, func(s *holder.Storage) bool { return s.Device == holder.UnknownDevice })
}

// which returns the storages of a reading that match.
func which(of *holder.Reading, matches func(*holder.Storage) bool) (out []*holder.Storage) {
	for i := range of.Storages {
		if s := &of.Storages[i]; matches(s) {
			out = append(out, s)
		}
	}
	return out
}

func total(storages []*holder.Storage) (sum int64) {
	for _, s := range storages {
		sum += size(s.Bytes)
	}
	return sum
}

// size returns n, or the largest number of bytes that there can be: a reading may be of a
// damaged heap.
func size(n uint64) int64 { return int64(min(n, 1<<62)) }

func runtime(r *holder.Reading) string {
	if r.Framework == "" {
		return r.Runtime
	}
	return r.Runtime + " with " + r.Framework
}

// Answer says in one sentence how much there is, and what keeps most of it.
func (r *Report) Answer() string {
	memory := "CUDA memory"
	if arrays := r.arrays(); len(arrays) > 0 || r.CPU {
		memory = "memory"
		if len(arrays) == len(r.storages(r.Reading)) {
			memory = "arrays of JAX"
		}
	}
	who, now := r.target(), r.storages(r.Reading)
	if r.Before != nil {
		then := r.storages(r.Before)
		came, went := changed(then, now), changed(now, then)
		return fmt.Sprintf("%s: %s of %s in %s, from %s to %s: %s came (%s), %s went (%s)%s", who, bytefmt.Signed(total(now)-total(then)), memory, r.passed(),
			bytefmt.Format(total(then)), bytefmt.Format(total(now)), bytefmt.Counted(len(came), "storage"), bytefmt.Format(total(came)), bytefmt.Counted(len(went), "storage"), bytefmt.Format(total(went)), r.grew())
	}
	answer := r.reserved(who)
	if answer == "" {
		answer = fmt.Sprintf("%s: %s of %s in %s", who, bytefmt.Format(total(now)), memory, bytefmt.Counted(len(now), "storage"))
		for _, label := range []string{holder.FreeInCuPy, holder.FreedLater} {
			if kept := total(slices.DeleteFunc(slices.Clone(now), func(s *holder.Storage) bool { return s.Holder != label })); kept > 0 {
				answer += fmt.Sprintf(", %s of it %s", bytefmt.Format(kept), strings.Trim(label, "[]"))
			}
		}
	}
	top := most(r.Reading.Retainers)
	switch {
	case top == nil || size(top.Retained) < total(now)/10:
		answer += "; no object alone keeps a tenth of it"
	default:
		answer += fmt.Sprintf("; `%s` keeps most: %s", top.Holder, bytefmt.Format(size(top.Retained)))
		if top.Graph > 0 {
			answer += fmt.Sprintf(", %s of it in autograd graphs", bytefmt.Format(size(top.Graph)))
		}
	}
	return answer
}

// reserved says what a process holds and PyTorch has of it, "" if PyTorch's allocator was not read.
func (r *Report) reserved(who string) string {
	var sum holder.Sum
	var native int64
	for i := range r.Reading.Allocators {
		sum.Add(r.Reading.Allocators[i].Sum())
	}
	if sum.Reserved == 0 {
		return ""
	}
	for i := range r.Reading.Storages {
		if s := &r.Reading.Storages[i]; s.OnGPU() && s.Native() {
			native += size(s.Bytes)
		}
	}
	reserved, allocated, active := size(sum.Reserved), size(sum.Allocated), size(sum.Active)
	came := size(r.Reading.Came)
	parts := []string{bytefmt.Format(max(allocated-native-came, 0)) + " held by Python objects"}
	if native > 0 {
		parts = append(parts, bytefmt.Format(native)+" by C++ alone")
	}
	if came > 0 {
		parts = append(parts, bytefmt.Format(came)+" allocated while it was read")
	}
	if waits := active - allocated; waits > 0 {
		parts = append(parts, bytefmt.Format(waits)+" freed, but another stream may still use it")
	}
	parts = append(parts, bytefmt.Format(max(reserved-active, 0))+" cached")
	text := fmt.Sprintf("%s reserved by PyTorch (%s)", bytefmt.Format(reserved), strings.Join(parts, ", "))
	if r.OnGPUs < reserved {
		return who + ": " + text
	}
	return fmt.Sprintf("%s holds %s on GPUs: %s and %s beside it (CUDA context, libraries)", who, bytefmt.Format(r.OnGPUs), text, bytefmt.Format(r.OnGPUs-reserved))
}

// passed is the time between the two readings.
func (r *Report) passed() time.Duration {
	d := time.Duration(r.Reading.End - r.Before.End)
	if d > time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}

// grew names the object that keeps more than before by the most bytes.
func (r *Report) grew() string {
	type identity struct{ holder, class string }
	before := make(map[identity]*holder.Retainer)
	for i := range r.Before.Retainers {
		x := &r.Before.Retainers[i]
		before[identity{x.Holder, x.Class}] = x
	}
	var grown []holder.Retainer
	for _, x := range r.Reading.Retainers {
		if was := before[identity{x.Holder, x.Class}]; was != nil {
			if x.Retained <= was.Retained {
				continue
			}
			x.Retained, x.Items = x.Retained-was.Retained, x.Items-was.Items
		}
		grown = append(grown, x)
	}
	top := most(grown)
	if top == nil {
		return ""
	}
	says := fmt.Sprintf("; `%s` grew most: %s", top.Holder, bytefmt.Signed(size(top.Retained)))
	if top.Items > 0 {
		says += fmt.Sprintf(", %s", bytefmt.Counted(top.Items, "item"))
	}
	return says
}

// most returns the retainer that a reader should look at first: the one that keeps most, or the
// innermost object in it that keeps more than half of that. It is nil if none keeps anything.
func most(retainers []holder.Retainer) *holder.Retainer {
	var top *holder.Retainer
	for i := range retainers {
		if x := &retainers[i]; x.Retained > 0 && (top == nil || x.Retained > top.Retained) {
			top = x
		}
	}
	if top == nil {
		return nil
	}
	half := top.Retained / 2
	for i := 0; i < len(retainers); i++ {
		if x := &retainers[i]; inside(x.Holder, top.Holder) && x.Retained > half && x.Items != 1 {
			top, i = x, -1
		}
	}
	return top
}

// inside reports whether a path leads through an object and further.
func inside(path, object string) bool {
	rest, ok := strings.CutPrefix(path, object)
	return ok && object != "" && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

// changed returns the storages of to that from does not have.
func changed(from, to []*holder.Storage) (out []*holder.Storage) {
	type identity struct {
		address, bytes uint64
		device         int32
		shape, dtype   string
		holder         string // only of a storage whose address is not known
	}
	of := func(s *holder.Storage) identity {
		id := identity{s.Address, s.Bytes, s.Device, shape(s.Shape), s.DType, ""}
		if s.Address == 0 {
			id.holder = s.Holder
		}
		return id
	}
	known := make(map[identity]bool, len(from))
	for _, s := range from {
		known[of(s)] = true
	}
	for _, s := range to {
		if !known[of(s)] {
			out = append(out, s)
		}
	}
	return out
}
