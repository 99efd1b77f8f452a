// Package timeline makes one HTML file of a recording: how much memory each process held over
// time, and at each moment by which stacks. The file needs no other file, and no network.
//
// The page shows the same bytes at a moment as the recording: see series.Stream.
package timeline

import (
	"cmp"
	"fmt"
	"io"

	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const (
	// maxDeltas bounds the changes on the page, so that a browser opens it in seconds.
	maxDeltas = 12 << 20
	// maxPacked bounds the data of the page, in bytes, by leaving out changes. As text it is
	// a third more: 49 MB.
	maxPacked = 35 << 20
	// maxLeaves bounds the call sites that are shown by themselves.
	maxLeaves = 1 << 18
	// maxLives bounds the allocations on the page's map.
	maxLives = 1 << 19
	// maxNodes bounds the frames of all stacks, where they differ.
	maxNodes = 1 << 20
	// maxMarks bounds the marks of a sort.
	maxMarks = 10_000
)

var causes loss.Causes

var (
	lossSites = causes.Add("timeline_sites_full", "call sites that the page shows together, by process, GPU and kind, because there were too many")
	lossNodes = causes.Add("timeline_frames_full", "stacks that the page does not show to their end because there were too many frames")
	lossSteps = causes.Add("timeline_steps_thinned", "training steps that the page does not mark because there were too many: it marks each 2nd, 10th, 20th and so on")
	lossMarks = causes.Add("timeline_marks_full", "failures that the page does not mark because there were too many")
	lossLives = causes.Add("timeline_places_full", "allocations that the page's map does not show because too many were live at once")
)

// Options say what to write.
type Options struct {
	// Play says how to play the recording. Its Before and Changed are not used.
	Play   replay.Options
	Native stacks.Native // as state.Want has it
	// Outlines are drawn over the curves of the GPUs.
	Outlines []Outline
	// Compared, if set, is a comparison with the run that Outlines are of.
	Compared *Comparison
	// Failures, if set, is called when the recording was played. It says what the page has first: of
	// each request that failed for want of memory, why, and what would have helped, or else what is wrong.
	Failures func() []Passage

	deltas, packed, lives, steps int // the most there may be, 0 for maxDeltas, maxPacked, maxLives and maxMarks
}

// Write writes the page of the recording at path up to a moment. It returns the state at
// that moment, and a counter for each way in which the page lacks something. Errors are
// those of replay.Play, and of w.
func Write(w io.Writer, path string, o Options) (*state.State, []loss.Counter, error) {
	lost := loss.New(causes)
	d, err := collect(path, o, lost)
	if err != nil {
		return nil, nil, err
	}
	for i := range o.Outlines {
		d.outline(&o.Outlines[i])
	}
	if o.Compared != nil {
		d.compare(o.Compared)
	}
	if o.Failures != nil {
		for _, p := range o.Failures() {
			d.failed(p)
		}
	}
	if err := d.write(w, d.blocks(cmp.Or(o.packed, maxPacked))); err != nil {
		return nil, nil, fmt.Errorf("write the timeline: %w", err)
	}
	return d.w.State, lost.Counters(), nil
}

// collect plays the recording at path.
func collect(path string, o Options, lost *loss.Set) (*document, error) {
	all := newRun(o, lost)
	o.Play.Before, o.Play.Changed = all.before, func(at *ledger.Site) { all.touch(at) }
	s, err := replay.Play(path, o.Play)
	if err != nil {
		return nil, err
	}
	all.finish(s)
	return all.document(s), nil
}
