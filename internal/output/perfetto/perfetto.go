// Package perfetto makes a trace for Perfetto (ui.perfetto.dev) of a recording: the memory of
// each process over time, by GPU and by cause or owner, as counters; failures for want of
// memory and the driver's readings as instants; and, as an option, the life of each
// allocation as a slice.
//
// The recording is played twice. The owner of a call site, for example, is known only at the
// end of the recording, and a counter must know at each event which sites it counts. Memory
// does not grow with the number of events.
package perfetto

import (
	"bufio"
	"fmt"
	"io"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const (
	// maxTracks bounds the counters.
	maxTracks = 4096
	// maxPoints bounds the points of all counters together, unless each has
	// minIntervals alone: a counter has three in an interval at most.
	maxPoints = 3 << 20
	// A counter's time is divided into so many intervals.
	minIntervals, maxIntervals = 256, 4096
	// maxInstants bounds the instants of a sort.
	maxInstants = 10_000
	// maxSites bounds the call sites whose labels are known.
	maxSites = 1 << 18
)

var causes loss.Causes

var (
	lossSites    = causes.Add("perfetto_sites_full", "changes of memory in use that the Perfetto trace shows only in a total, because there were too many call sites")
	lossTracks   = causes.Add("perfetto_tracks_full", "counters left out of the Perfetto trace because there were too many: their bytes are in the total")
	lossInstants = causes.Add("perfetto_instants_full", "failures and readings left out of the Perfetto trace because there were too many")
	lossSlices   = causes.Add("perfetto_slices_full", "allocations without a slice in the Perfetto trace because there were too many")
)

// Options say what to write. The zero value writes counters and instants.
type Options struct {
	// Play says how to play the recording. Its Before and Changed are not used.
	Play   replay.Options
	Slices bool
	Native stacks.Native // as state.Want has it
}

// Write writes a trace of the recording at path up to a moment. It returns the state at
// that moment, and a counter for each way in which the trace lacks something. Errors
// are those of replay.Play, and of w.
func Write(w io.Writer, path string, o Options) (*state.State, []loss.Counter, error) {
	lost := loss.New(causes)
	first := newSurvey(o)
	play := replay.Options{At: o.Play.At, Later: o.Play.Later, Before: first.before, Changed: first.Hear}
	if report := o.Play.Progress; report != nil {
		play.Progress = func(part float64) { report(part / 2) }
		o.Play.Progress = func(part float64) { report((1 + part) / 2) }
	}
	s, err := replay.Play(path, play)
	if err != nil {
		return nil, nil, err
	}
	first.finish(s)
	out := &writer{w: bufio.NewWriterSize(w, 1<<16)}
	t := newPlot(out, first, o, lost)
	o.Play.Before, o.Play.Changed = t.before, t.hear
	if s, err = replay.Play(path, o.Play); err != nil {
		return nil, nil, err
	}
	t.finish(s)
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return nil, nil, fmt.Errorf("write the Perfetto trace: %w", out.err)
	}
	return s, lost.Counters(), nil
}
