package pprof

import (
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// The names of the comments that Read looks for.
const (
	targetName = "target"
	momentName = "moment"
)

// comments returns the profile's comments, each in the form "name: value".
// Sizes are plain numbers of bytes, so that programs can read them too.
func comments(s *snapshot.Snapshot) []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, render.Clean(fmt.Sprintf(format, args...)))
	}
	text := func(name, value string) {
		if value != "" {
			add("%s: %s", name, value)
		}
	}
	text("gpumemtrace", s.Meta.Version)
	text("command", s.Meta.CommandLine)
	text(targetName, s.Meta.Target)
	text(momentName, s.Meta.Moment)
	text("driver", s.Meta.Driver)
	text("stacks", s.Meta.StackMode)
	text("duration", s.Meta.Duration.String())
	add("events: %d", s.Meta.Events)

	var sum snapshot.Values
	for i := range s.Samples {
		sum.Add(&s.Samples[i].Values)
	}
	var outOfMemory int64
	for i := range s.Processes {
		p := &s.Processes[i]
		outOfMemory += p.OutOfMemory
		add("%s", process(p))
	}
	for i := range s.Allocators {
		add("%s", cache(&s.Allocators[i]))
	}
	for i := range s.Windowed {
		x := &s.Windowed[i]
		add("windows of %d (%s) on GPU %s: %d of %v, %d whole steps; at the peak %d bytes in tensors, %d of them from before the window, of %d that the allocator held",
			x.PID, x.Process, x.GPU, x.Windows, x.Time, x.Steps, x.Peak, x.Before, x.Reserved)
	}
	if sum.FailedObjects != 0 {
		add("failed allocations: %d calls for %d bytes, %d calls out of memory",
			sum.FailedObjects, sum.FailedBytes, outOfMemory)
	}
	for _, c := range loss.Shown(s.Loss) {
		if c.Value != 0 {
			add("loss %s: %d (%s)", c.Name, c.Value, c.Help)
		}
	}
	for _, n := range s.Notes {
		add("note: %s", n)
	}
	return out
}

func cache(a *snapshot.Allocator) string {
	sum, shared := a.Total(), a.Shared()
	text := fmt.Sprintf("cache of %d (%s) on GPU %s: %d of %d bytes, largest free block %d, releasable %d",
		a.PID, a.Process, a.GPU, sum.Cached, sum.Reserved, shared.LargestFree, sum.Releasable)
	if sum.Reserved != shared.Reserved {
		text += fmt.Sprintf("; %d of %d bytes in private pools", sum.Cached-shared.Cached, sum.Reserved-shared.Reserved)
	}
	if a.Unseen != 0 {
		text += fmt.Sprintf("; %d of it in tensors not seen", a.Unseen)
	}
	if a.Outside != 0 {
		text += fmt.Sprintf("; tensors elsewhere %d", a.Outside)
	}
	return text
}

func process(p *snapshot.Process) string {
	state := ""
	if p.Exited {
		state = ", exited"
	}
	var s strings.Builder
	s.WriteString(fmt.Sprintf("process %d (%s%s): device bytes in use %d, peak %d, allocated %d",
		p.PID, p.Name, state, p.Inuse, p.Peak, p.Allocated))
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"managed", p.Managed},
		{"host", p.Host},
		{"imported", p.Imported},
		{"graph", p.Graph},
		{"unattributed", p.Unattributed},
		{"failed calls", p.Failed},
		{"frees of unknown addresses", p.UnmatchedFrees},
	} {
		if f.value != 0 {
			s.WriteString(fmt.Sprintf("; %s %d", f.name, f.value))
		}
	}
	return s.String()
}
