package export

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"path"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Align returns copies of the snapshots of several runs of a program, in which the same stack has
// the same lines. A run may be of an edited program: lines have moved, and files have other names.
// Stacks are the same if their functions are, and the files of those in installed packages. If a
// run has as many stacks with these functions as the last one, they are the same in the order of
// their lines. Otherwise all of them are one. The last run's lines are shown.
//
// GPUs that only have other numbers are the same as well, and so are single processes with other
// names.
func Align(runs ...*snapshot.Snapshot) []*snapshot.Snapshot {
	out := make([]*snapshot.Snapshot, len(runs))
	last := len(runs) - 1
	shown := newRunStacks(runs[last])
	merged := map[string]bool{} // functions whose stacks are one
	all := make([]*runStacks, len(runs))
	for i, run := range runs {
		all[i] = newRunStacks(run)
		for functions, x := range all[i].byFunctions {
			if y := shown.byFunctions[functions]; y != nil && len(x) != len(y) {
				merged[functions] = true
			}
		}
	}
	for i, run := range runs {
		copied := *run
		copied.Samples = slices.Clone(run.Samples)
		gpus, processes := renamed(run, runs[last], "gpu"), renamed(run, runs[last], "process")
		for j := range copied.Samples {
			s := &copied.Samples[j]
			s.Stack = shown.counterpart(all[i], &run.Samples[j], merged)
			s.GPU, s.Process = cmp.Or(gpus[s.GPU], s.GPU), cmp.Or(processes[s.Process], s.Process)
		}
		out[i] = &copied
	}
	return out
}

// renamed returns what the values of a label in run are called in other, if both have equally many.
func renamed(run, other *snapshot.Snapshot, label string) map[string]string {
	i := slices.IndexFunc(snapshot.AllLabels[:], func(l snapshot.Label) bool { return l.Name == label })
	values := func(s *snapshot.Snapshot) []string {
		found := map[string]bool{}
		for j := range s.Samples {
			if v := snapshot.AllLabels[i].Get(&s.Samples[j].Labels); v != "" {
				found[v] = true
			}
		}
		return slices.Sorted(maps.Keys(found))
	}
	from, to := values(run), values(other)
	if len(from) != len(to) {
		return nil
	}
	out := map[string]string{}
	for j := range from {
		out[from[j]] = to[j]
	}
	return out
}

// runStacks are the different stacks of a run.
type runStacks struct {
	byFunctions map[string][]runStack // in the order of their lines
	of          map[*snapshot.Sample]runStack
}

// A runStack is a stack, and what of it is the same in other runs and what is not.
type runStack struct {
	functions string // a hash of them: stacks may be long
	lines     []int
	stack     []*snapshot.Location
}

func compareLines(a, b runStack) int { return slices.Compare(a.lines, b.lines) }

func newRunStacks(run *snapshot.Snapshot) *runStacks {
	x := &runStacks{map[string][]runStack{}, map[*snapshot.Sample]runStack{}}
	for i := range run.Samples {
		s := &run.Samples[i]
		r := newRunStack(s.Stack)
		x.of[s] = r
		x.byFunctions[r.functions] = append(x.byFunctions[r.functions], r)
	}
	for functions, all := range x.byFunctions {
		sorting.Stable(all, compareLines)
		x.byFunctions[functions] = slices.CompactFunc(all, func(a, b runStack) bool { return compareLines(a, b) == 0 })
	}
	return x
}

func newRunStack(stack []*snapshot.Location) runStack {
	functions := sha256.New()
	var lines []int
	for _, l := range stack {
		for _, f := range l.Lines {
			file := ""
			if stacks.Library(f.File) {
				file = path.Base(f.File)
			}
			functions.Write([]byte(f.Function + "\x00" + file + "\x00"))
			lines = append(lines, f.Line)
		}
	}
	return runStack{string(functions.Sum(nil)), lines, stack}
}

// counterpart returns the stack of x that a sample of another run has.
func (x *runStacks) counterpart(of *runStacks, s *snapshot.Sample, merged map[string]bool) []*snapshot.Location {
	r := of.of[s]
	stacks := x.byFunctions[r.functions]
	switch {
	case stacks == nil:
		return s.Stack
	case merged[r.functions]:
		return stacks[0].stack
	}
	i, _ := slices.BinarySearchFunc(of.byFunctions[r.functions], r, compareLines)
	return stacks[i].stack
}
