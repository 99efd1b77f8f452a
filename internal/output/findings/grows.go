package findings

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Growth is proven by so many training steps in a row, each of which left memory that is still held.
const provenSteps = 5

// A growth is looked at as if it went on for so many steps.
const manySteps = 10_000

// growing: the last training steps each left tensors of one stack that are still held. What an
// optimizer or a cache sets up is made once.
func growing(l *look) (out []Finding) {
	for i := range l.peak.Steps {
		of := &l.peak.Steps[i]
		// The last one may still free what is its own.
		if len(of.Last) < provenSteps+1 {
			continue
		}
		all := of.Last[len(of.Last)-1].InuseBytes
		for _, g := range l.grown(of) {
			if !matters(g.each*manySteps, all) {
				continue
			}
			who := "The program"
			if g.holder != "" {
				who = "`" + g.holder + "`"
			}
			out = append(out, Finding{
				Says:   fmt.Sprintf("%s keeps %s more with each training step, %s so far%s.", who, bytefmt.Format(g.each), bytefmt.Format(g.bytes), madeAt(g.line)),
				Bytes:  g.bytes,
				object: object{of.PID, g.holder},
				each:   g.each,
				line:   g.line,
				Change: "If no loss uses it later, keep x.detach().cpu(), or a running sum: total += x.detach(). detach() alone frees only the graph.",
			})
		}
	}
	return out
}

// A growth is what the tensors of one line, made in training steps, still hold.
type growth struct {
	line   string
	bytes  int64
	each   int64  // of the step that left least
	holder string // of most of it
}

// grown returns what grew in the training steps of a process, by line.
func (l *look) grown(of *snapshot.Steps) (out []growth) {
	last := of.Last[len(of.Last)-provenSteps-1 : len(of.Last)-1]
	type stack struct {
		bytes int64
		left  [provenSteps]int64
		held  map[string]int64
		of    *snapshot.Sample
	}
	var stacks []*stack
	index := map[**snapshot.Location]int{} // what each holder has of a sample is a sample of its own, with the same stack
	later := l.holders(of.PID)
	for i := range l.peak.Live {
		a := &l.peak.Live[i]
		s := &l.peak.Samples[a.Sample]
		if s.PID != of.PID || s.GPU != of.GPU || s.Kind != snapshot.Tensor || len(s.Stack) == 0 || a.Time.Before(of.Last[0].Begin) {
			continue
		}
		n, known := index[&s.Stack[0]]
		if !known {
			n, stacks = len(stacks), append(stacks, &stack{of: s, held: map[string]int64{}})
			index[&s.Stack[0]] = n
		}
		x := stacks[n]
		if n := stepOf(last, a.Time); n >= 0 {
			x.left[n] += a.Size
		}
		x.bytes += a.Size
		if name := cmp.Or(later[alive{a.Address, a.Time.UnixNano()}], s.Holder); name != "" {
			x.held[holder.Alike(name)] += a.Size
		}
	}
	place := map[string]int{}
	for _, x := range stacks {
		if slices.Contains(x.left[:], 0) {
			continue
		}
		name := line(x.of)
		j, known := place[name]
		if !known {
			j, out = len(out), append(out, growth{line: name, holder: holder.Most(x.held)})
			place[name] = j
		}
		out[j].bytes, out[j].each = out[j].bytes+x.bytes, out[j].each+slices.Min(x.left[:])
	}
	return out
}

// An alive is a tensor by its address and when it was made, in nanoseconds.
type alive struct {
	address uint64
	made    int64
}

// holders returns what holds the tensors of a process that are there at the end: the last reading knows
// more of them than one before the peak.
func (l *look) holders(pid int) map[alive]string {
	out := map[alive]string{}
	for i := range l.end.Live {
		a := &l.end.Live[i]
		if s := &l.end.Samples[a.Sample]; s.PID == pid && s.Holder != "" {
			out[alive{a.Address, a.Time.UnixNano()}] = s.Holder
		}
	}
	return out
}

// stepOf returns in which step a moment is, -1 for none.
func stepOf(steps []snapshot.Step, t time.Time) int {
	return slices.IndexFunc(steps, func(s snapshot.Step) bool { return !t.Before(s.Begin) && t.Before(s.Begin.Add(s.Took)) })
}
