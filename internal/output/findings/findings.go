// Package findings says what is wrong with the memory of a program, where what was recorded
// proves it: one sentence with the line, the bytes that it costs, and what to change. A rule that
// cannot prove its cause says nothing.
package findings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Finding is one thing that is wrong.
type Finding struct {
	Rule   string // the name of its Rule
	Says   string // what is wrong, in a sentence
	Bytes  int64  // what it costs on GPUs
	Change string // what to change, and what that saves, in a sentence

	object object // what keeps the memory, if that is known
	each   int64  // for growth: bytes of each step
	line   string // and the line that makes them
}

// An object is one of a process's, by the path that a programmer would write to it.
type object struct {
	pid  int
	path string
}

// part reports whether one of two objects is the other, or a part of it.
func (o object) part(of object) bool {
	a, b := holder.Alike(variable(o.path)), holder.Alike(variable(of.path))
	if len(a) > len(b) {
		a, b = b, a
	}
	return o.pid == of.pid && a != "" && within(b, a)
}

// within reports whether a path leads to an object or a part of it.
func within(path, object string) bool {
	rest, begins := strings.CutPrefix(path, object)
	return begins && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// A Rule finds one cause, if all that it needs was recorded.
type Rule struct {
	Name  string
	Cause string // what it looks for, as a noun
	Needs []Need
	find  func(*look) []Finding
}

// A Need is something that must have been recorded.
type Need string

// What rules need: the program was traced so.
const (
	Tensors Need = "with --tensors"
	Heap    Need = "with --holders 30s"
	Steps   Need = "a training"
	Driver  Need = "as root"
)

// Rules are in the order in which equally large findings are shown. A rule is a row here, a
// program in test/gpu/cases/findings.py and a case in rules_test.go.
var Rules = []Rule{
	{"growth", "memory that grows with each training step", []Need{Tensors, Steps}, growing},
	{"old-graph", "an autograd graph that outlives its training step", []Need{Heap, Tensors, Steps}, oldGraphs},
	{"collected-graphs", "a container that keeps autograd graphs", []Need{Heap}, inHeaps(collectedGraphs)},
	{"gathered", "results that a container gathers", []Need{Heap, Tensors}, gathered},
	{"small-view", "a small tensor that keeps a large storage", []Need{Heap}, inHeaps(smallViews)},
	{"no-backward", "activations kept for a backward pass that never runs", []Need{Heap, Tensors}, noBackward},
	{"frozen-copy", "a copy of a model that is not trained", []Need{Heap}, inHeaps(frozenCopies)},
	{"idle-module", "modules that were not called", []Need{Heap, Tensors}, idleModules},
	{"stale-gradients", "gradients that outlive the step that used them", []Need{Tensors, Steps}, ofUses(staleGradients)},
	{"hook", "a hook that keeps tensors", []Need{Heap}, inHeaps(heldBy("hook"))},
	{"traceback", "a traceback that keeps tensors", []Need{Heap}, inHeaps(heldBy("traceback"))},
	{"second-copy", "a second copy of a model's parameters", []Need{Heap}, inHeaps(secondCopies)},
	{"cycle", "a reference cycle that is never collected", []Need{Heap}, inHeaps(cycles)},
	{"waiting", "freed memory that waits for another stream", []Need{Heap}, inHeaps(waiting)},
	{"optimizer-temporaries", "an optimizer's temporaries at the peak", []Need{Tensors}, ofUses(optimizerTemporaries)},
	{"type-copy", "a large copy of one tensor to another type at the peak", []Need{Tensors}, ofUses(typeCopies)},
	{"checkpoint", "gradient checkpointing that recomputes nothing", []Need{Tensors}, ofUses(checkpointing)},
	{"workspaces", "workspaces of cuBLAS for many streams", []Need{Tensors}, ofUses(workspaces)},
	{"plans", "plans of cuFFT for many shapes", []Need{Driver}, plans},
	{"buckets", "gradients that DistributedDataParallel has twice", []Need{Tensors}, ofUses(buckets)},
	{"fragmentation", fmt.Sprintf("memory lost to fragmentation (%s and %d %% of what is reserved, or more)", bytefmt.Format(leastFragmented), leastReserved), []Need{Tensors}, fragmentation},
	{"setting", "memory that another setting of PyTorch's allocator saves", []Need{Tensors}, settings},
	{"graph-pools", "several private pools of CUDA graphs", []Need{Tensors}, graphPools},
	{"communicators", "many communicators of NCCL", []Need{Driver}, communicators},
	{"second-gpu", "a context on an unused GPU", []Need{Driver}, ofUses(secondGPUs)},
	{"workers", "workers with their own context", []Need{Driver}, ofUses(workers)},
	{"orphan", "a process that outlives its parent", []Need{Driver}, orphans},
	{"import", "memory that an import takes", []Need{Driver}, ofUses(imports)},
}

// inHeaps is a rule that looks at one heap after the other.
func inHeaps(find func(snapshot.Heap) []Finding) func(*look) []Finding {
	return func(l *look) (out []Finding) {
		for _, h := range l.heaps {
			out = append(out, find(h)...)
		}
		return out
	}
}

// ofUses is a rule that looks at what one process holds on one GPU after the other.
func ofUses(find func(*look, *use) []Finding) func(*look) []Finding {
	return func(l *look) (out []Finding) {
		for _, u := range l.uses {
			out = append(out, find(l, u)...)
		}
		return out
	}
}

// Names returns the names of all rules.
func Names() (names []string) {
	for i := range Rules {
		names = append(names, Rules[i].Name)
	}
	return names
}

// A Verdict is what rules found.
type Verdict struct {
	Findings []Finding // those that cost most first
	All      int       // rules that apply to the program
	lacks    []lack
	// ofSnapshot: it is of a file that PyTorch wrote.
	ofSnapshot bool
}

// A lack is a rule that could not look, and what it needs first.
type lack struct {
	rule    string
	need    Need
	applies bool // to such a program
}

// Lacks returns what a rule would need that was not recorded. lacks is false if it could look.
func (v *Verdict) Lacks(rule string) (need Need, lacks bool) {
	for _, l := range v.lacks {
		if l.rule == rule {
			return l.need, true
		}
	}
	return "", false
}

// Of returns what a rule found.
func (v *Verdict) Of(rule string) []Finding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f Finding) bool { return f.Rule != rule })
}

// accumulating are the rules of what a program keeps more and more of.
var accumulating = []string{"growth", "old-graph", "collected-graphs", "gathered", "hook", "traceback", "cycle"}

// Accumulated returns what v says of memory that a program keeps more and more of: people call it a leak.
func (v *Verdict) Accumulated() *Verdict {
	return &Verdict{Findings: slices.DeleteFunc(slices.Clone(v.Findings), func(f Finding) bool { return !slices.Contains(accumulating, f.Rule) })}
}

// A Setting is what the best setting of PyTorch's allocator would have changed on a GPU of a process.
type Setting struct {
	PID          int
	Process, GPU string
	Name         string // "" if none helps
	Says         string // what it would have changed, in a sentence
	Saves        int64  // bytes at the peak
}

// use says how to use the setting.
func (s *Setting) use() string {
	but := ""
	switch {
	case strings.HasPrefix(s.Name, "max_split_size_mb"):
		but = " It may be slower."
	case s.Name == "expandable_segments:True":
		but = " Sharing tensors with other processes (CUDA IPC) may then fail."
	}
	return fmt.Sprintf("Start the program with PYTORCH_CUDA_ALLOC_CONF=%s instead of the value that it may have, and unset PYTORCH_ALLOC_CONF.%s", s.Name, but)
}

// Find looks for all causes. peak is what was held at the peak, or at the moment that is asked for.
// end is what is known at the end, and may be peak. settings are those that help.
func Find(peak, end *snapshot.Snapshot, settings ...Setting) *Verdict {
	l := newLook(peak.ByRank(), end.ByRank())
	l.settings = settings
	return l.find(Rules)
}

// FindInHeap looks for the causes that one reading of a heap proves.
func FindInHeap(h snapshot.Heap) *Verdict {
	s := &snapshot.Snapshot{Heaps: []snapshot.Heap{h}}
	return newLook(s, s).find(slices.DeleteFunc(slices.Clone(Rules), func(r Rule) bool { return !slices.Equal(r.Needs, []Need{Heap}) }))
}

func (l *look) find(rules []Rule) *Verdict {
	v := &Verdict{All: len(rules), ofSnapshot: l.peak.Meta.StackMode == snapshot.ByPyTorch}
	for i := range rules {
		r := &rules[i]
		if j := slices.IndexFunc(r.Needs, func(n Need) bool { return !l.has(n) }); j >= 0 {
			applies := !slices.ContainsFunc(r.Needs, func(n Need) bool { return !l.has(n) && !l.applies(n) })
			if !applies {
				v.All--
			}
			v.lacks = append(v.lacks, lack{r.Name, r.Needs[j], applies})
			continue
		}
		for _, f := range r.find(l) {
			f.Rule = r.Name
			v.Findings = append(v.Findings, f)
		}
	}
	sorting.Stable(v.Findings, func(a, b Finding) int { return cmp.Compare(b.Bytes, a.Bytes) })
	v.Findings = once(v.Findings)
	return v
}

// once leaves out what another finding says of the same object and explains better: why it is kept, and not
// that it grows. Of two alike the larger stays.
func once(all []Finding) (out []Finding) {
	explains := func(f *Finding) int {
		switch f.Rule {
		case "gathered":
			return 0
		case "growth":
			return 1
		}
		return 2
	}
	grows := make([]int64, len(all))
	lines := make([]string, len(all))
	said := func(i int) bool {
		for j := range all {
			a, b := explains(&all[i]), explains(&all[j])
			if i != j && all[i].object.part(all[j].object) && (b > a || b == a && j < i) {
				grows[j], lines[j] = grows[j]+all[i].each, cmp.Or(lines[j], all[i].line)
				return true
			}
		}
		return false
	}
	kept := make([]bool, len(all))
	for i := range all {
		kept[i] = !said(i)
	}
	for i, f := range all {
		if kept[i] {
			if grows[i] > 0 && f.each == 0 {
				f.Says += fmt.Sprintf(" Each training step adds %s%s.", bytefmt.Format(grows[i]), madeAt(lines[i]))
			}
			out = append(out, f)
		}
	}
	return out
}

// mostShown bounds the findings of a page.
const mostShown = 5

// Show writes the verdict. failed says that the page has told of a failure already.
func (v *Verdict) Show(page *render.Page, failed bool) {
	lacking := v.lacking()
	if len(v.Findings) == 0 {
		nothing := "Nothing wrong was found that costs much"
		if failed {
			nothing = "Apart from that, nothing wrong was found that costs much"
		}
		page.Line("%s. %s.", nothing, cmp.Or(lacking, bytefmt.Counted(v.All, "cause")+" were looked for"))
		return
	}
	page.Heading("What is wrong")
	for _, f := range v.Findings[:min(len(v.Findings), mostShown)] {
		page.Line("  %s", f.Says)
		page.Line("    %s", f.Change)
	}
	if n := len(v.Findings) - mostShown; n > 0 {
		page.Line("  and %d more", n)
	}
	if lacking != "" {
		page.Line("  %s.", lacking)
	}
}

// Prefix begins each of a Verdict's Sentences.
const Prefix = "What is wrong: "

// Sentences returns the findings that a page shows, each with what to change.
func (v *Verdict) Sentences() (out []string) {
	for _, f := range v.Findings[:min(len(v.Findings), mostShown)] {
		out = append(out, Prefix+f.Says+" "+f.Change)
	}
	return out
}

// lacking says how to look for what was not looked for, "" if everything was.
func (v *Verdict) lacking() string {
	var needs []Need
	rules, n := map[Need]int{}, 0
	for _, l := range v.lacks {
		if !l.applies {
			continue
		}
		n++
		if rules[l.need]++; rules[l.need] == 1 {
			needs = append(needs, l.need)
		}
	}
	if n == 0 {
		return ""
	}
	var parts []string
	for _, n := range needs {
		parts = append(parts, fmt.Sprintf("%s (%d)", n, rules[n]))
	}
	how := "To look for the others, trace " + strings.Join(parts, ", ")
	if v.ofSnapshot {
		how = "PyTorch's snapshots cannot show the others (gpumemtrace check FILE --no-finding all lists them): trace the program with sudo gpumemtrace --tensors --holders 30s"
	}
	return fmt.Sprintf("%d of %s were looked for. %s", v.All-n, bytefmt.Counted(v.All, "cause"), how)
}

// A look is what rules look at.
type look struct {
	peak, end *snapshot.Snapshot
	uses      []*use
	commands  map[int]string  // of processes
	heaps     []snapshot.Heap // those that were not refused
	settings  []Setting
	read      []read // what reads returns, nil until it is asked for
	tensors   bool
	pytorch   bool
}

// A use is what a process holds on a GPU, at the peak.
type use struct {
	pid          int
	process, gpu string
	samples      []*snapshot.Sample
	bytes        int64
}

func newLook(peak, end *snapshot.Snapshot) *look {
	l := &look{peak: peak, end: end, commands: map[int]string{}}
	for i := range peak.Processes {
		l.commands[peak.Processes[i].PID] = peak.Processes[i].Command
	}
	type key struct {
		pid int
		gpu string
	}
	uses := map[key]*use{}
	for i := range peak.Samples {
		s := &peak.Samples[i]
		if !snapshot.OnGPU(s.Kind) {
			continue
		}
		k := key{s.PID, s.GPU}
		if uses[k] == nil {
			uses[k] = &use{pid: s.PID, process: s.Process, gpu: s.GPU}
			l.uses = append(l.uses, uses[k])
		}
		u := uses[k]
		u.samples, u.bytes = append(u.samples, s), u.bytes+peak.Meta.Held(&s.Values)
		l.tensors, l.pytorch = l.tensors || s.Kind == snapshot.Tensor, l.pytorch || s.Owner == "pytorch"
	}
	for _, s := range []*snapshot.Snapshot{end, peak} {
		for _, h := range s.Heaps {
			if h.Reading.Refused == "" && !slices.ContainsFunc(l.heaps, func(x snapshot.Heap) bool { return x.PID == h.PID }) {
				l.heaps = append(l.heaps, h)
			}
		}
	}
	return l
}

func (l *look) has(n Need) bool {
	switch n {
	case Tensors:
		return l.tensors
	case Heap:
		return len(l.heaps) > 0
	case Steps:
		return l.peak.Live != nil && slices.ContainsFunc(l.peak.Steps, func(s snapshot.Steps) bool { return s.Begun })
	}
	return slices.ContainsFunc(l.peak.Accounts, func(a snapshot.Account) bool { return a.Known })
}

// applies reports whether a program could have something to record: tensors are PyTorch's, and not each
// program trains.
func (l *look) applies(n Need) bool {
	switch n {
	case Tensors:
		return l.pytorch
	case Steps:
		return l.pytorch && !l.tensors
	}
	return true
}

// held is what a sample holds at the peak.
func (l *look) held(s *snapshot.Sample) int64 { return l.peak.Meta.Held(&s.Values) }

// Of what a process holds, a finding is worth telling from so many parts in a hundred on, and from
// so many bytes on: less is not why memory ran out.
const (
	leastShare = 2
	leastBytes = 8 << 20
)

// matters reports whether bytes are worth telling, of all.
func matters(bytes, all int64) bool {
	return bytes >= leastBytes && bytes >= all/100*leastShare
}

// lines adds samples up by the line of the program that made them, the largest first. A line whose
// name is not known is "".
func (l *look) lines(samples []*snapshot.Sample) (out []lineOf) {
	place := map[string]int{}
	for _, s := range samples {
		name := line(s)
		i, known := place[name]
		if !known {
			i, out = len(out), append(out, lineOf{name: name})
			place[name] = i
		}
		out[i].bytes += l.held(s)
	}
	sorting.Stable(out, func(a, b lineOf) int { return cmp.Compare(b.bytes, a.bytes) })
	return out
}

type lineOf struct {
	name  string
	bytes int64
}

// at is " at " with the line, or nothing.
func (x *lineOf) at() string { return at(x.name) }

// first is "; most are from " with the line, or nothing.
func (x *lineOf) first() string {
	if x.name == "" {
		return ""
	}
	return "; most are from " + x.name
}

// madeAt is ", made at " with a line, or nothing.
func madeAt(line string) string {
	if line == "" {
		return ""
	}
	return ", made at " + line
}

func at(line string) string {
	if line == "" {
		return ""
	}
	return " at " + line
}

// line returns the program's own line that is nearest to the leaf, "" for none.
func line(s *snapshot.Sample) string {
	if lines, own := stacks.Own(s.Stack); own && len(lines) > 0 {
		file := lines[0].File
		return render.Place(lines[0], render.ShortPaths([]string{file})[file])
	}
	return ""
}

// sumOf adds up what samples hold.
func (l *look) sumOf(samples []*snapshot.Sample) (bytes, objects int64) {
	for _, s := range samples {
		bytes, objects = bytes+l.held(s), objects+s.InuseObjects
	}
	return bytes, objects
}

// where returns the samples that hold something and for which f is true.
func (l *look) where(u *use, f func(*snapshot.Sample) bool) (out []*snapshot.Sample) {
	for _, s := range u.samples {
		if l.held(s) > 0 && f(s) {
			out = append(out, s)
		}
	}
	return out
}

// tensor reports whether a sample is tensors of a category.
func tensor(s *snapshot.Sample, category string) bool {
	return s.Kind == snapshot.Tensor && s.Category == category
}

var contextKind = event.KindContext.String()

// bytesOf returns n, or the largest number of bytes that there can be.
func bytesOf(n uint64) int64 { return int64(min(n, 1<<62)) }

// onGPU are the bytes of a heap's storages on GPUs.
func onGPU(r *holder.Reading) (sum int64) {
	for i := range r.Storages {
		if s := &r.Storages[i]; s.OnGPU() {
			sum += bytesOf(s.Bytes)
		}
	}
	return sum
}
