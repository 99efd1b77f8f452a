package findings

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// idleModules: other modules were called several times, and none of a tree of modules was: none of its calls
// made a tensor, and its parameters have no gradients. One module alone may be used without a call, as the
// projection of an attention is, and compiled code calls none.
func idleModules(l *look) (out []Finding) {
	const several = 5
	for _, h := range l.heaps {
		called, calls := l.called(h.PID)
		if calls < several {
			continue
		}
		parts := map[string][]*holder.Storage{} // by module
		for i := range h.Reading.Storages {
			s := &h.Reading.Storages[i]
			switch {
			case s.Role == holder.Gradient || s.Role == holder.OptimizerState:
				called = append(called, s.Module)
			case s.OnGPU() && (s.Role == holder.Parameter || s.Role == holder.Buffer) && s.Module != "":
				parts[s.Module] = append(parts[s.Module], s)
			}
		}
		var idle []string
		for _, m := range h.Reading.Modules {
			if !slices.ContainsFunc(called, func(path string) bool { return within(path, m.Path) }) {
				idle = append(idle, m.Path)
			}
		}
		for _, path := range idle {
			if slices.ContainsFunc(idle, func(other string) bool { return other != path && within(path, other) }) {
				continue
			}
			var bytes int64
			modules := 0
			for of, all := range parts {
				if within(of, path) {
					modules++
					for _, s := range all {
						if !elsewhere(s, path) {
							bytes += bytesOf(s.Bytes)
						}
					}
				}
			}
			if modules > 1 && matters(bytes, onGPU(h.Reading)) {
				out = append(out, Finding{
					Says:   fmt.Sprintf("`%s` was not called while it was traced, but other modules were: its parameters take %s.", path, bytefmt.Format(bytes)),
					Bytes:  bytes,
					Change: "If nothing ever calls it or reads its weights, drop it. If it is used later, keep it on the CPU until then (not under DDP or FSDP, nor if it shares weights).",
					object: object{h.PID, path},
				})
			}
		}
	}
	return out
}

// called returns the paths to the modules of a process that made a tensor when they were called, and how many
// tensors the busiest of their stacks made. It returns nothing if the process runs compiled code or CUDA
// graphs, since these run modules without a call.
func (l *look) called(pid int) (paths []string, most int64) {
	for i := range l.end.Samples {
		s := &l.end.Samples[i]
		if s.PID != pid || s.Kind != snapshot.Tensor {
			continue
		}
		if compiled(s.Stack) {
			return nil, 0
		}
		if s.Module != "" && s.ModulePath != "" && s.Category != stacks.Parameter && s.Category != stacks.Gradient && s.Category != stacks.OptimizerState {
			paths, most = append(paths, s.ModulePath), max(most, s.AllocObjects)
		}
	}
	for i := range l.end.Allocators {
		if a := &l.end.Allocators[i]; a.PID == pid && graphPoolsOf(a).pools > 0 {
			return nil, 0
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), most
}

// compiled reports whether torch.compile made a frame.
func compiled(stack []*snapshot.Location) bool {
	return stacks.Any(stack, func(x *snapshot.Line) bool {
		return strings.Contains(x.File, "/torch/_dynamo/") || strings.Contains(x.File, "/torch/_inductor/") || strings.Contains(x.File, "torchinductor")
	})
}

// elsewhere reports whether something outside a module holds a parameter of it, other than an optimizer.
func elsewhere(s *holder.Storage, module string) bool {
	return slices.ContainsFunc(s.More, func(path string) bool {
		return !strings.Contains(path, module) && !strings.Contains(path, `"params"`)
	})
}

// leastStale is from how many parts in a hundred on stale gradients are told. Many programs have some, and what
// they save is not known exactly: the backward pass may need as much.
const leastStale = 5

// staleGradients: at the peak the optimizer has used gradients already, and the backward pass that needs their
// memory has not begun.
func staleGradients(l *look, u *use) (out []Finding) {
	last := lastStep(l.peak, u.pid)
	if last.IsZero() {
		return out
	}
	var stale int64
	var samples []*snapshot.Sample
	begun := false // the backward pass, or the next step
	for i := range l.peak.Live {
		a := &l.peak.Live[i]
		s := &l.peak.Samples[a.Sample]
		switch {
		case s.PID != u.pid || s.GPU != u.gpu || s.Kind != snapshot.Tensor:
		case s.Category == stacks.Gradient && a.Time.Before(last) && stacks.Backward(s.Stack):
			stale += a.Size
			samples = append(samples, s)
		case !a.Time.Before(last):
			call, ok := stacks.Step(s.Stack)
			begun = begun || s.Category == stacks.Gradient || stacks.Backward(s.Stack) || ok && call.ID != 0
		}
	}
	if !begun && matters(stale, u.bytes) && stale >= u.bytes/100*leastStale {
		out = append(out, Finding{
			Says:   fmt.Sprintf("Gradients from before the last step are still held at the peak: %s, in %s.", bytefmt.Format(stale), bytefmt.Counted(len(samples), "tensor")),
			Bytes:  stale,
			Change: "Call optimizer.zero_grad() right after its step(), once nothing reads .grad any more, without set_to_none=False: that saves up to that much. Set requires_grad_(False) on parameters that no optimizer has.",
		})
	}
	return out
}

// lastStep returns when the last training step of a process ended, the zero time for none.
func lastStep(s *snapshot.Snapshot, pid int) (end time.Time) {
	for i := range s.Steps {
		if n := len(s.Steps[i].Last); s.Steps[i].PID == pid && n > 0 {
			if step := &s.Steps[i].Last[n-1]; step.Begin.Add(step.Took).After(end) {
				end = step.Begin.Add(step.Took)
			}
		}
	}
	return end
}
