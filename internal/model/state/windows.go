package state

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/windows"
)

// TensorWindows says in which windows tensors are traced, nil for a trace without windows.
func (s *State) TensorWindows() *snapshot.TensorWindows {
	if !s.windows.Active() {
		return nil
	}
	w := s.windows
	return &snapshot.TensorWindows{Length: time.Duration(w.Length), Every: time.Duration(w.Every), Count: w.Count, Time: time.Duration(w.Time)}
}

// windowNotes say how to read a snapshot of a trace with windows.
func windowNotes(w *snapshot.TensorWindows) []string {
	if w == nil {
		return nil
	}
	return []string{"tensors were traced in windows only, up to this moment in " + w.String() + ": figures of tensors and training steps are of these alone, and everywhere else segments are whole"}
}

// WindowIsComplete reports whether the open window of tensors may end: see windows.Account.
func (s *State) WindowIsComplete() bool { return s.windows.Complete() }

// WindowHadStep reports whether any window had a whole training step.
func (s *State) WindowHadStep() bool { return s.windows.HadStep() }

// A windowed has the tensors of a process on a device in a View.
type windowed struct {
	*windows.Report
	gpu string // label
	// Of each row:
	frames  [][]*record.Place
	modules [][]uint64
}

// addWindows copies what was seen of tensors in windows, with its stacks if these are wanted.
func (c *collector) addWindows() {
	s := c.s
	for _, r := range s.windows.Reports(s.now.Time, c.v.want.Windows) {
		c.addName(r.Process)
		x := windowed{Report: r, gpu: s.deviceLabel(r.Process, r.Device)}
		for i := range r.Rows {
			x.frames = append(x.frames, s.stacks.Frames(r.Rows[i].Stack))
			x.modules = append(x.modules, s.stacks.Modules(r.Rows[i].Stack))
		}
		c.v.windowed = append(c.v.windowed, x)
	}
}

// figures returns all but the rows.
func (x *windowed) figures(v *View) snapshot.Windowed {
	return snapshot.Windowed{PID: int(x.Process.PID), Process: v.names[x.Process], GPU: x.gpu, Windows: x.Windows, Time: x.Time,
		Steps: x.Steps, AllocObjects: x.Objects, AllocBytes: x.Bytes, Peak: x.Peak, Before: x.Before, Reserved: x.Reserved, WholeStep: x.Whole}
}

// windowed returns the tensors of the view that were seen in windows.
func (b *builder) windowed() (out []snapshot.Windowed) {
	for i := range b.view.windowed {
		x := &b.view.windowed[i]
		one := x.figures(b.view)
		for j := range x.Rows {
			r := x.Rows[j]
			at := site{Site: ledger.Site{SiteKey: ledger.SiteKey{Proc: x.Process, Stack: r.Stack, Kind: event.KindTensor, Device: x.Device}}, gpu: x.gpu}
			shape := b.shape(r.Stack, event.KindTensor, x.frames[j])
			row := snapshot.WindowedRow{
				Sample: snapshot.Sample{Stack: shape.frames, Labels: b.labels(&at, event.KindTensor, "", shape),
					Values: snapshot.Values{AllocObjects: r.Objects, AllocBytes: r.Bytes, PeakBytes: r.Peak}},
				StepObjects: r.StepObjects, StepBytes: r.StepBytes, Freed: r.Freed, Longest: time.Duration(r.Longest),
				Outlived: r.Outlived, OutlivedBytes: r.OutlivedBytes,
			}
			row.Sample.ModulePath = b.view.modulePath(x.Process, x.modules[j])
			if r.Freed > 0 {
				row.Life = time.Duration(r.Life / uint64(r.Freed))
			}
			one.Rows = append(one.Rows, row)
		}
		out = append(out, one)
	}
	return out
}
