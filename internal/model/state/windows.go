package state

import (
	"time"

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
	// Of each stack:
	frames  [][]*record.Place
	modules [][]uint64
}

// addWindows copies what was seen of tensors in windows, with its stacks if these are wanted.
func (c *collector) addWindows() {
	s := c.s
	for _, r := range s.windows.Reports(s.now.Time, c.v.want.Windows) {
		c.addName(r.Process)
		x := windowed{Report: r}
		x.PID, x.Windowed.Process, x.GPU = int(r.Process.PID), c.v.names[r.Process], s.deviceLabel(r.Process, r.Device)
		for _, row := range r.Stacks {
			x.frames = append(x.frames, s.stacks.Frames(row.Stack))
			x.modules = append(x.modules, s.stacks.Modules(row.Stack))
		}
		c.v.windowed = append(c.v.windowed, x)
	}
}

// windowed returns the tensors of the view that were seen in windows.
func (b *builder) windowed() (out []snapshot.Windowed) {
	for i := range b.view.windowed {
		x := &b.view.windowed[i]
		one := x.Windowed
		for j, r := range x.Stacks {
			row := snapshot.WindowedRow{Sample: b.tensors(x.Process, x.GPU, r.Stack, x.frames[j]), Lives: r.Lives}
			row.Sample.Values, row.Sample.ModulePath = r.Values, b.view.modulePath(x.Process, x.modules[j])
			one.Rows = append(one.Rows, row)
		}
		out = append(out, one)
	}
	return out
}
