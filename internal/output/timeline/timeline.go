// Package timeline makes one HTML file of a recording: who held how much memory over
// time, and at each of its moments by which stacks. The file needs nothing else, and no
// network.
//
// What it shows at a moment is what the recording shows then, to the byte: see stream.
package timeline

import (
	"cmp"
	"fmt"
	"io"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const (
	// maxDeltas bounds what the page knows of changes, so that a browser opens it in
	// seconds.
	maxDeltas = 12 << 20
	// maxPacked bounds the bytes of all that the page knows, by leaving out changes. As
	// text they are a third more: 49 MB.
	maxPacked = 35 << 20
	// maxLeaves bounds the call sites that are told apart.
	maxLeaves = 1 << 18
	// maxLives bounds the allocations whose places are known.
	maxLives = 1 << 19
	// maxNodes bounds the frames of all stacks, where they differ.
	maxNodes = 1 << 20
	// maxMarks bounds the marks of a sort.
	maxMarks = 10_000
	// maxProcesses bounds those that are remembered to have been heard of.
	maxProcesses = 1 << 16
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

	deltas, packed, lives, steps int // the most there may be, 0 for maxDeltas, maxPacked, maxLives and maxMarks
}

// Write writes the page of the recording at path up to a moment. It returns the state at
// that moment, and a counter for each way in which the page lacks something. Errors are
// those of replay.Play, and of w.
func Write(w io.Writer, path string, o Options) (*state.State, []loss.Counter, error) {
	lost := loss.New(causes)
	all := newWatcher(o, lost)
	o.Play.Before, o.Play.Changed = all.before, all.hear
	s, err := replay.Play(path, o.Play)
	if err != nil {
		return nil, nil, err
	}
	all.finish(s)
	d := all.document(s)
	blocks, err := d.blocks(cmp.Or(o.packed, maxPacked))
	if err == nil {
		err = d.write(w, blocks)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("write the timeline: %w", err)
	}
	return s, lost.Counters(), nil
}
