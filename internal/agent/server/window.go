package server

import (
	"encoding/binary"
	"maps"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A cell identifies a call site, or a sample without a site, in two snapshots.
type cell struct {
	site ledger.SiteKey
	// Only for a sample without a site.
	labels snapshot.Labels
	stack  string
}

// turnover has the counters that only grow.
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

// between returns the snapshot after, whose counters of allocations and failures begin at was.
// Several windows may share was. The counters of a call site that was forgotten in between
// begin at 0.
func between(was map[cell]turnover, after *live.Snapshot) *snapshot.Snapshot {
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
		// If a site has several samples, the count before is subtracted from the first of
		// them, and what remains of it from the next ones.
		now := turnoverOf(&x.Values)
		took := was[k].least(now)
		was[k] = was[k].minus(took)
		now = now.minus(took)
		x.AllocObjects, x.AllocBytes, x.FailedObjects, x.FailedBytes = now.allocObjects, now.allocBytes, now.failedObjects, now.failedBytes
	}
	return &out
}

// turnovers returns the turnover of each cell of a snapshot.
func turnovers(l *live.Snapshot) map[cell]turnover {
	out := make(map[cell]turnover, len(l.Snapshot.Samples))
	var key cells
	for i := range l.Snapshot.Samples {
		k := key.of(l, i)
		out[k] = out[k].plus(turnoverOf(&l.Snapshot.Samples[i].Values))
	}
	return out
}

type cells struct{ id []byte }

// of returns the cell of a snapshot's i-th sample.
func (c *cells) of(l *live.Snapshot, i int) cell {
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
	k.labels.Category = "" // it may be known only later
	return k
}
