package snapshot

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// TensorWindows says in which windows tensors were traced.
type TensorWindows struct {
	Length time.Duration `json:"length_ns"` // of a window, at least
	Every  time.Duration `json:"every_ns"`  // from the beginning of one to that of the next
	Count  int64         `json:"windows"`   // that have begun
	Time   time.Duration `json:"time_ns"`   // that those which have ended lasted
}

// String says which windows these are, such as "12 windows of 2s, one each 1m".
func (w *TensorWindows) String() string {
	return fmt.Sprintf("%s of %s, one each %s", bytefmt.Counted(w.Count, "window"), bytefmt.Duration(w.Length), bytefmt.Duration(w.Every))
}

// A Windowed has what was seen in windows of the tensors of one process on one GPU.
type Windowed struct {
	PID     int    `json:"pid"`
	Process string `json:"process"` // comm
	GPU     string `json:"gpu"`     // as Labels.GPU
	// Windows are those in which a tensor was made or freed, and Time is how long they lasted.
	Windows int64         `json:"windows"`
	Time    time.Duration `json:"time_ns"`
	Steps   int64         `json:"steps"` // whole training steps in them
	// AllocObjects and AllocBytes are of all tensors that were made in them.
	AllocObjects int64 `json:"alloc_objects"`
	AllocBytes   int64 `json:"alloc_bytes"`
	// Peak are the bytes in tensors at the peak of a whole step, or of a window if WholeStep is
	// false. Of these, Before are of tensors from before the window, which have no row. Reserved
	// is what the allocator held then.
	Peak      int64 `json:"peak_bytes"`
	Before    int64 `json:"before_bytes"`
	Reserved  int64 `json:"reserved_bytes"`
	WholeStep bool  `json:"whole_step"`
	// Rows are the stacks that made tensors, those that held most at the peak first.
	Rows []WindowedRow `json:"-"`
}

// A WindowedRow has the tensors that a stack made in windows.
type WindowedRow struct {
	// Sample has the stack, the labels, what was allocated in windows, and what was held at the
	// Peak. Nothing in it is in use.
	Sample Sample `json:"-"`
	Lives
}

// Lives are what becomes of tensors that were made in windows.
type Lives struct {
	// StepBytes and StepObjects were made in whole training steps.
	StepBytes   int64 `json:"step_alloc_bytes"`
	StepObjects int64 `json:"step_alloc_objects"`
	// Freed tensors were freed in the same window. Life is how long all of them lived, and
	// Longest the longest life.
	Freed   int64         `json:"freed_objects"`
	Life    time.Duration `json:"-"`
	Longest time.Duration `json:"longest_life_ns"`
	// Outlived tensors were live when their window ended: what became of them is not known.
	Outlived      int64 `json:"outlived_objects"`
	OutlivedBytes int64 `json:"outlived_bytes"`
}

// Add adds the figures of o, but not its stack and labels.
func (r *WindowedRow) Add(o *WindowedRow) {
	r.Sample.Values.Add(&o.Sample.Values)
	r.StepObjects += o.StepObjects
	r.StepBytes += o.StepBytes
	r.Freed += o.Freed
	r.Life += o.Life
	r.Longest = max(r.Longest, o.Longest)
	r.Outlived += o.Outlived
	r.OutlivedBytes += o.OutlivedBytes
}

// MeanLife is the mean lifetime of the tensors that Freed counts. It is 0 if Freed is 0.
func (l *Lives) MeanLife() time.Duration { return l.Life / time.Duration(max(l.Freed, 1)) }

// Share returns how much of a row is allocated in a whole training step, or in a second where no step
// was seen. Per says which.
func (x *Windowed) Share(r *WindowedRow) (bytes, objects float64) {
	if x.Steps > 0 {
		return float64(r.StepBytes) / float64(x.Steps), float64(r.StepObjects) / float64(x.Steps)
	}
	return float64(r.Sample.AllocBytes) / x.Time.Seconds(), float64(r.Sample.AllocObjects) / x.Time.Seconds()
}

// Per is "STEP" or "SECOND": see Share.
func (x *Windowed) Per() string {
	if x.Steps > 0 {
		return "STEP"
	}
	return "SECOND"
}
