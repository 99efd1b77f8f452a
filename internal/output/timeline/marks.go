package timeline

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// steps are training steps to be marked. Where there are too many, only those remain whose
// number is a multiple of every: of 2, 10, 20, 100 and so on, so that each has those of the
// next.
type steps struct {
	of      map[stepsOf]*stepsOn
	every   uint64
	doubled bool // every is 2, 20, ...
	count   int
	max     int // of count
	left    int // out
}

type stepsOf struct {
	proc   event.Process
	device int32
}

type stepsOn struct {
	gpu string // label, as far as it is known
	all []stepAt
}

type stepAt struct{ number, begin uint64 }

func newSteps(most int) *steps { return &steps{of: map[stepsOf]*stepsOn{}, every: 1, max: most} }

// add adds a step that ended.
func (s *steps) add(x state.TrainingStep) {
	for s.count >= s.max && s.every < 1<<60 {
		s.thin()
	}
	if s.count >= s.max || x.Number%s.every != 0 {
		s.left++
		return
	}
	on := keyed.At(s.of, stepsOf{x.Proc, x.Device})
	on.all = append(on.all, stepAt{x.Number, x.Begin})
	s.count++
}

// thin drops all but one of two steps, or of five.
func (s *steps) thin() {
	by := uint64(2)
	if s.doubled {
		by = 5
	}
	s.every *= by
	s.doubled = !s.doubled
	before := s.count
	for key, on := range s.of {
		s.count -= len(on.all)
		on.all = slices.DeleteFunc(on.all, func(x stepAt) bool { return x.number%s.every != 0 })
		if s.count += len(on.all); len(on.all) == 0 {
			delete(s.of, key)
		}
	}
	s.left += before - s.count
}

// label stores the labels of GPUs, of processes that live.
func (s *steps) label(of *state.State, whose func(event.Process) bool) {
	for key, on := range s.of {
		if (on.gpu == "" || on.gpu == unknownGPU) && whose(key.proc) {
			on.gpu = of.GPU(&ledger.SiteKey{Proc: key.proc, Kind: event.KindTensor, Device: key.device})
		}
	}
}

// stepMarks adds the training steps, in the order of processes and devices.
func (d *document) stepMarks(s *steps) {
	keys := sorting.Keys(s.of, func(a, b stepsOf) int {
		return cmp.Or(a.proc.Compare(b.proc), cmp.Compare(a.device, b.device))
	})
	for _, key := range keys {
		on := s.of[key]
		for _, x := range on.all {
			d.meta.Marks = append(d.meta.Marks, mark{d.since(x.begin), "step", fmt.Sprintf("step %d of %s (%d)", x.number, web.Clean(cmp.Or(d.w.names[key.proc], "process")), key.proc.PID), on.gpu, x.number})
		}
	}
	if s.left > 0 {
		d.w.lost.Add(lossSteps, uint64(s.left))
		d.meta.Notes = append(d.meta.Notes, fmt.Sprintf("there were %d training steps: those are marked whose number is a multiple of %d", s.count+s.left, s.every))
	}
}

// failed stores a failure to be marked.
func (w *run) failed(f *state.Failure) {
	if len(w.failures) >= maxMarks {
		w.lost.Add(lossMarks, 1)
		return
	}
	w.failures = append(w.failures, *f)
}

// failureText describes a failure.
func failureText(f *state.Failure) string {
	asked := bytefmt.Format(int64(min(f.Size(), 1<<62))) + " asked for"
	switch {
	case f.API != "":
		return "out of memory: " + asked + " by " + f.API
	case f.Framework:
		return "refused by PyTorch itself: " + asked
	}
	return "out of memory: " + asked
}
