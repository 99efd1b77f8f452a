package live

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Window is how many snapshots back growth is measured.
const Window = 10

// A Tracker compares snapshots that follow each other. It stores a few numbers for each
// stack of the last snapshot, and nothing of other stacks.
type Tracker struct {
	n     int                // snapshots so far
	times [Window]time.Time  // of the latest ones, by their number
	last  *snapshot.Snapshot // its figures of processes
	cost  *Cost
	stack map[ID]*known
	procs map[int]*history // by PID
	high  map[string]int64 // by GPU
	seed  maphash.Seed

	wrong  []string // what is, as it was looked for at the moment looked
	looked time.Time
}

// A history is what was in use in the latest snapshots, by their number.
type history [Window]int64

// A known is the earlier figures of a stack.
type known struct {
	history
	last      int    // how many snapshots there were when it was in one last
	row       int    // in the status of that snapshot
	kind      string // at the last one
	allocated int64  // bytes, at the last one
	holder    string // at the last one with holders

	text  text
	match match
}

// NewTracker returns a Tracker that has no snapshot.
func NewTracker() *Tracker {
	return &Tracker{stack: map[ID]*known{}, high: map[string]int64{}, seed: maphash.MakeSeed()}
}

// Forget begins afresh: the next snapshot does not follow the last one.
func (t *Tracker) Forget() {
	t.n, t.last, t.cost, t.stack, t.procs = 0, nil, nil, map[ID]*known{}, nil
}

// Add returns the status of the next snapshot.
func (t *Tracker) Add(l *Snapshot) *Status {
	s := l.Snapshot
	at := s.Meta.Start.Add(s.Meta.Duration)
	p := &Status{Meta: s.Meta, Ranks: s.Ranks(), Elapsed: s.Meta.Duration, Accounts: s.Accounts, Notes: t.withFindings(s, at), Windowed: s.Windowed, Cost: l.Cost, Ended: l.Ended}
	if t.last != nil {
		before := t.last.Meta
		p.Interval = at.Sub(before.Start.Add(before.Duration))
		p.Window = at.Sub(t.times[max(t.n-Window, 0)%Window])
		p.EventRate = rate(int64(s.Meta.Events-before.Events), p.Interval)
		if t.cost != nil && l.Cost != nil && p.Interval > 0 {
			p.Load = float64(l.Cost.CPU-t.cost.CPU) / float64(p.Interval)
		}
	}
	for _, c := range loss.Shown(s.Loss) {
		if c.Value != 0 {
			p.Lost = append(p.Lost, c)
		}
	}
	t.stacks(p, l)
	t.processes(p, s)
	t.gpus(p, s)
	t.times[t.n%Window] = at
	t.n++
	t.last, t.cost = &snapshot.Snapshot{Meta: s.Meta, Processes: s.Processes}, l.Cost
	return p
}

// lookAgain is how often a Tracker looks for what is wrong. With many call sites that takes as long as a
// snapshot.
const lookAgain = 10 * time.Second

// withFindings returns the notes of a snapshot, and before them what is wrong. The snapshot of another
// machine has some of it already.
func (t *Tracker) withFindings(s *snapshot.Snapshot, at time.Time) []string {
	if t.n == 0 || at.Sub(t.looked) >= lookAgain || at.Before(t.looked) {
		t.wrong, t.looked = findings.Find(s, s).Sentences(), at
	}
	wrong := slices.DeleteFunc(slices.Clone(t.wrong), func(text string) bool { return slices.Contains(s.Notes, text) })
	return append(wrong, s.Notes...)
}

// rate returns n in d as of a second, 0 where there is no interval.
func rate(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// grew stores what is in use now, and returns by how much it grew in the window. A stack
// that was not there before had nothing.
func (t *Tracker) grew(h *history, inuse int64) int64 {
	before := h[max(t.n-Window, 0)%Window]
	h[t.n%Window] = inuse
	if t.n == 0 {
		return 0
	}
	return inuse - before
}

func (t *Tracker) stacks(p *Status, l *Snapshot) {
	s := l.Snapshot
	all := make([]Stack, 0, len(s.Samples))
	held := map[*known]map[string]int64{} // bytes by holder
	for i := range s.Samples {
		x := &s.Samples[i]
		id := ID{}
		if i < len(l.Sites) && l.Sites[i] != (ledger.SiteKey{}) {
			id.Site = l.Sites[i]
		} else {
			id.Hash = t.hash(x)
		}
		before := keyed.At(t.stack, id)
		if x.Holder != "" && x.InuseBytes > 0 {
			keyed.Map(held, before)[x.Holder] += x.InuseBytes
		}
		if before.last == t.n+1 { // two samples of one call site
			row := &all[before.row]
			sum := *row.Sample
			sum.Values.Add(&x.Values)
			row.Sample = &sum
			continue
		}
		before.last, before.row = t.n+1, len(all)
		all = append(all, Stack{ID: id, Sample: x, known: before})
	}
	if len(t.stack) > len(all) {
		maps.DeleteFunc(t.stack, func(_ ID, x *known) bool { return x.last != t.n+1 })
	}
	p.Stacks = make([]*Stack, 0, len(all))
	for i := range all {
		x := &all[i]
		if len(held) > 0 {
			x.holder = holder.Most(held[x.known])
		}
		v := &x.Sample.Values
		x.Grown = t.grew(&x.history, v.InuseBytes)
		switch was := x.allocated; {
		case p.Interval <= 0:
		case x.kind != "" && x.kind != x.Sample.Kind: // what it counts is another thing now
		case v.AllocBytes < was: // it was put together with others, and came back
			x.Rate = rate(v.AllocBytes, p.Interval)
		default:
			x.Rate = rate(v.AllocBytes-was, p.Interval)
		}
		x.kind, x.allocated = x.Sample.Kind, v.AllocBytes
		p.Stacks = append(p.Stacks, x)
	}
}

// hash is of everything in which samples without a call site differ.
func (t *Tracker) hash(x *snapshot.Sample) uint64 {
	var h maphash.Hash
	h.SetSeed(t.seed)
	text := func(s string) {
		h.WriteString(s)
		h.WriteByte(0)
	}
	maphash.WriteComparable(&h, x.PID)
	text(x.Kind)
	text(x.API)
	text(x.GPU)
	for _, l := range x.Stack {
		text(l.Lines[0].Function)
		maphash.WriteComparable(&h, l.Lines[0].Line)
	}
	return h.Sum64()
}

// unexplained are the lines of accounts that name no cause.
var unexplained = []string{state.LineBefore, state.LineRemainder, state.LineUnknown}

func (t *Tracker) processes(p *Status, s *snapshot.Snapshot) {
	before := map[int]*snapshot.Process{}
	if t.last != nil {
		for i := range t.last.Processes {
			before[t.last.Processes[i].PID] = &t.last.Processes[i]
		}
	}
	accounts := map[int][]*snapshot.Account{}
	for i := range s.Accounts {
		a := &s.Accounts[i]
		accounts[a.PID] = append(accounts[a.PID], a)
	}
	procs := map[int]*history{}
	for i := range s.Processes {
		x := Process{Process: s.Processes[i]}
		if !x.Exited { // its PID may be another one's by now
			h := t.procs[x.PID]
			if h == nil {
				h = &history{}
			}
			x.Grown = t.grew(h, x.Inuse)
			procs[x.PID] = h
		}
		if p.Interval > 0 {
			was := int64(0)
			if b := before[x.PID]; b != nil && b.Allocated <= x.Allocated {
				was = b.Allocated
			}
			x.Rate = rate(x.Allocated-was, p.Interval)
		}
		for _, a := range accounts[x.PID] {
			if x.Exited && x.Inuse == 0 && x.Physical == 0 { // another's
				continue
			}
			x.Known = a.Known && (x.Known || len(x.GPUs) == 0)
			x.GPUs = append(x.GPUs, a.GPU)
			x.Held += a.Total
			x.Unexplained += unexplainedOf(a)
			if a.Compared {
				if x.Difference == nil {
					x.Difference = new(int64)
				}
				*x.Difference += a.Difference
			}
		}
		p.Processes = append(p.Processes, x)
	}
	t.procs = procs
}

func unexplainedOf(a *snapshot.Account) (bytes int64) {
	for _, l := range a.Lines {
		if slices.Contains(unexplained, l.Name) {
			bytes += l.Bytes
		}
	}
	return bytes
}

func (t *Tracker) gpus(p *Status, s *snapshot.Snapshot) {
	at := render.Index[string]{}
	on := func(label string) *GPU {
		i, fresh := at.Number(label)
		if fresh {
			p.GPUs = append(p.GPUs, GPU{Label: label, Known: true})
		}
		return &p.GPUs[i]
	}
	traced := map[int]bool{}
	for i := range s.Processes {
		traced[s.Processes[i].PID] = true
	}
	for _, d := range s.GPUs {
		g := on(d.GPU)
		g.Name, g.Total, g.Used = d.Name, d.Total, d.Used
		for _, x := range d.Processes {
			if !traced[x.PID] {
				g.Others++
			}
		}
	}
	for i := range s.Accounts {
		a := &s.Accounts[i]
		g := on(a.GPU)
		g.Traced++
		g.Held += a.Total
		g.Unexplained += unexplainedOf(a)
		g.Known = g.Known && a.Known
	}
	for i := range p.GPUs {
		g := &p.GPUs[i]
		t.high[g.Label] = max(t.high[g.Label], g.Held)
		g.Highest = t.high[g.Label]
	}
	sorting.Stable(p.GPUs, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(len(a.Label), len(b.Label)), cmp.Compare(a.Label, b.Label))
	})
}
