package push

import (
	"crypto/rand"
	"time"

	"github.com/google/pprof/profile"

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
	node   string
	loss   *loss.Set
}

func newCollector(o Options, set *loss.Set) *collector {
	return &collector{
		source: o.Source, node: o.Node, loss: set,
		want: state.Want{Driver: true, Unreported: true, Holders: true, Shapes: state.NewShapes()},
	}
}

// profiles yields those of the interval that ends now: of each process that held or
// allocated memory in it. One that ended has its last. They are made one by one: all of
// them together are as large as the state.
func (c *collector) profiles(yield func(*process) bool) {
	view := c.source.Report(c.want)
	begin, end := view.Interval()
	for _, one := range view.ByProcess() {
		p, err := c.process(&one, begin, end)
		if err != nil {
			c.loss.Add(lossBuilt, 1)
		}
		if p != nil && !yield(p) {
			return
		}
	}
}

// process returns what a process did in an interval, nil if there is nothing.
func (c *collector) process(one *state.ProcessView, begin, end time.Time) (*process, error) {
	x := &process{id: newIdentity(), begin: begin, end: end}
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
	for _, x := range p.Sample {
		delete(x.Label, labelProcess) // the series has it
		delete(x.Label, labelPID)
	}
	x.profile = p
	x.labels = SeriesLabels(c.node, &s.Processes[0].Who, one.Name, int(one.Process.PID))
	return x, nil
}
