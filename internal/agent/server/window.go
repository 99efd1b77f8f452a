package server

import (
	"encoding/binary"
	"maps"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A cell is what is the same for one call site, or one line without a site, in two Looks.
type cell struct {
	site ledger.SiteKey
	// Of what has no site.
	labels snapshot.Labels
	stack  string
}

// turnover is what counts up.
type turnover struct{ allocObjects, allocBytes, failedObjects, failedBytes int64 }

func turnoverOf(v *snapshot.Values) turnover {
	return turnover{v.AllocObjects, v.AllocBytes, v.FailedObjects, v.FailedBytes}
}

func (t turnover) plus(o turnover) turnover {
	return turnover{t.allocObjects + o.allocObjects, t.allocBytes + o.allocBytes, t.failedObjects + o.failedObjects, t.failedBytes + o.failedBytes}
}

func (t turnover) minus(o turnover) turnover {
	return turnover{t.allocObjects - o.allocObjects, t.allocBytes - o.allocBytes, t.failedObjects - o.failedObjects, t.failedBytes - o.failedBytes}
}

func (t turnover) least(o turnover) turnover {
	return turnover{min(t.allocObjects, o.allocObjects), min(t.allocBytes, o.allocBytes), min(t.failedObjects, o.failedObjects), min(t.failedBytes, o.failedBytes)}
}

// between returns what after shows, with what was allocated, and failed, since was alone,
// which several windows may share. A call site that was forgotten meanwhile counts from its
// new beginning.
func between(was map[cell]turnover, after *live.Look) *snapshot.Snapshot {
	was, is := maps.Clone(was), turnovers(after)
	for k, t := range is {
		if w := was[k]; w.least(t) != w {
			delete(was, k)
		}
	}
	out := *after.Snapshot
	out.Samples = make([]snapshot.Sample, len(after.Snapshot.Samples))
	var key cells
	for i := range out.Samples {
		x := &out.Samples[i]
		*x = after.Snapshot.Samples[i]
		k := key.of(after, i)
		// Of several samples of one site, each takes what it can of what was before.
		now := turnoverOf(&x.Values)
		took := was[k].least(now)
		was[k] = was[k].minus(took)
		now = now.minus(took)
		x.AllocObjects, x.AllocBytes, x.FailedObjects, x.FailedBytes = now.allocObjects, now.allocBytes, now.failedObjects, now.failedBytes
	}
	return &out
}

// turnovers are those of a Look.
func turnovers(l *live.Look) map[cell]turnover {
	out := make(map[cell]turnover, len(l.Snapshot.Samples))
	var key cells
	for i := range l.Snapshot.Samples {
		k := key.of(l, i)
		out[k] = out[k].plus(turnoverOf(&l.Snapshot.Samples[i].Values))
	}
	return out
}

type cells struct{ id []byte }

// of returns the cell of a Look's i-th sample.
func (c *cells) of(l *live.Look, i int) cell {
	if i < len(l.Sites) {
		return cell{site: l.Sites[i]}
	}
	x := &l.Snapshot.Samples[i]
	c.id = c.id[:0]
	for _, at := range x.Stack {
		c.id = binary.LittleEndian.AppendUint64(c.id, at.Address)
		for j := range at.Lines {
			c.id = append(append(c.id, at.Lines[j].Function...), 0)
			c.id = binary.LittleEndian.AppendUint32(c.id, uint32(at.Lines[j].Line))
		}
	}
	k := cell{labels: x.Labels, stack: string(c.id)}
	k.labels.Category = "" // it may have become known meanwhile
	return k
}
