package push

import (
	"crypto/rand"
	"slices"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
)

// A process is what one process allocated in an interval, and had in use at its end.
type process struct {
	id         identity
	labels     []Label // as SeriesLabels returns them
	begin, end time.Time
	// profile has all values of pprof, and neither times nor comments.
	profile *profile.Profile
}

// An identity is a random UUID. It stays with a profile, so that a target may know it
// again.
type identity [16]byte

func newIdentity() (id identity) {
	_, _ = rand.Read(id[:]) // which never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

// A collector makes profiles of one interval after the other.
type collector struct {
	source Source
	want   state.Want
	labels func(pid int, start uint64) ([]Label, bool)
	loss   *loss.Set
	known  map[event.Process][]Label // of processes that were there at the last interval
	// patience is for all processes of an interval together.
	patience time.Duration
}

func newCollector(o Options, set *loss.Set) *collector {
	return &collector{
		source: o.Source, labels: o.Labels, loss: set, patience: patience,
		want: state.Want{Driver: true, Unreported: true, Holders: true, Native: o.Native, Shapes: state.NewShapes()},
	}
}

// profiles yields those of the interval that ends now: of each process that held or
// allocated memory in it. One that ended has its last. They are made one by one: all of
// them together are as large as the state.
func (c *collector) profiles(yield func(*process) bool) {
	view := c.source.Report(c.want)
	begin, end := view.Interval()
	all := view.ByProcess()
	labels := c.series(all)
	for i := range all {
		p, err := newProcess(&all[i], labels[i], begin, end)
		if err != nil {
			c.loss.Add(lossBuilt, 1)
		}
		if p != nil && !yield(p) {
			return
		}
	}
}

// newProcess returns what a process did in an interval, nil if there is nothing.
func newProcess(one *state.ProcessView, labels []Label, begin, end time.Time) (*process, error) {
	x := &process{id: newIdentity(), labels: labels, begin: begin, end: end}
	if one.Ended.After(begin) && one.Ended.Before(end) {
		x.end = one.Ended
	}
	s := one.Snapshot()
	if len(s.Samples) == 0 {
		return nil, nil
	}
	s.Meta.Start, s.Meta.Duration = time.Time{}, 0
	p, err := pprof.Profile(s)
	if err != nil || len(p.Sample) == 0 {
		return nil, err
	}
	p.Comments = nil // no receiver shows them
	for _, s := range p.Sample {
		delete(s.Label, labelProcess) // the series has it
		delete(s.Label, labelPID)
	}
	x.profile = p
	return x, nil
}

// patience is for how long labels are waited for that are looked for just now.
const patience = time.Second

// series returns the labels of processes: also of those that hold nothing yet, whose
// labels are looked for at the same time.
func (c *collector) series(all []state.ProcessView) [][]Label {
	out := make([][]Label, len(all))
	known := make(map[event.Process][]Label, len(all))
	until := time.Now().Add(c.patience)
	left := make([]int, len(all))
	for i := range all {
		left[i] = i
	}
	for {
		left = slices.DeleteFunc(left, func(i int) bool {
			one := &all[i]
			labels, ok := c.known[one.Process]
			if !ok {
				labels, ok = c.find(one)
			}
			if out[i] = labels; ok && one.Ended.IsZero() {
				known[one.Process] = labels
			}
			return ok
		})
		if len(left) == 0 || !time.Now().Before(until) {
			break
		}
		time.Sleep(c.patience / 20)
	}
	c.known = known
	return out
}

// find returns the labels of a process, and whether they are all.
func (c *collector) find(one *state.ProcessView) ([]Label, bool) {
	var more []Label
	known := true
	if c.labels != nil {
		more, known = c.labels(int(one.Process.PID), one.Process.Start)
	}
	labels, cut := SeriesLabels(more, one.Name, one.Process.PID)
	if known {
		c.loss.Add(lossLabels, uint64(cut))
	}
	return labels, known
}
