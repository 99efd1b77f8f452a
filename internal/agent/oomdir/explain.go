package oomdir

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif"
)

const (
	// settles is how long after a failure the recording has it on disk. It is written twice a
	// second.
	settles = 2 * time.Second
	// waiting bounds the questions that wait, each with all that was live at its moment.
	waiting = 2
	// rests is how many times as long as it worked the explainer then rests.
	rests = 9
)

// A question is whether other settings of PyTorch's allocator would have served a request that
// failed.
type question struct {
	of        *snapshot.OutOfMemory
	page      string
	recording string // path of the recording that has the failure
}

// An explainer answers questions one at a time. It repeats the process's run from the
// recording, in a thread that gives way to all others, and writes the page again.
type explainer struct {
	dir       *Dir
	recording func() string
	told      func(string)
	questions chan question
	ending    chan struct{} // closed when the recordings are whole
	ended     chan struct{}
}

// Explain has pages say what other settings of PyTorch's allocator would have changed, once the
// recording of the trace shows it. Until then a page names the command that says so. The
// function recording returns the path of the recording that is being written, "" for none, and
// told receives a sentence about each page that has changed, from another goroutine. Explain
// is called before Write.
func (d *Dir) Explain(recording func() string, told func(string)) {
	d.explainer = &explainer{
		dir: d, recording: recording, told: told,
		questions: make(chan question, waiting), ending: make(chan struct{}), ended: make(chan struct{}),
	}
	go d.explainer.run()
}

// Finish answers the questions that are left. The recordings are whole by now, and Write is
// called no more.
func (d *Dir) Finish() {
	if x := d.explainer; x != nil {
		close(x.ending)
		close(x.questions)
		<-x.ended
	}
}

// recordingOf returns the recording that can explain a failure, "" for none, and puts into o how
// to ask it.
func (x *explainer) recordingOf(o *snapshot.OutOfMemory) string {
	if x == nil || !whatif.CanExplain(o) {
		return ""
	}
	recording := x.recording()
	if recording != "" {
		o.Unpredicted = fmt.Sprintf("gpumemtrace report %s --oom says whether one would have served the request.", recording)
	}
	return recording
}

// add never waits. A question for which there is no room stays open: its page names the command.
func (x *explainer) add(q question) {
	select {
	case x.questions <- q:
	default:
	}
}

func (x *explainer) run() {
	defer close(x.ended)
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	giveWay()
	var open []question // that the recording did not answer yet
	for q := range x.questions {
		x.wait(settles)
		began := time.Now()
		if !x.answer(q) && len(open) < waiting {
			open = append(open, q)
		}
		x.wait(rests * time.Since(began))
	}
	for _, q := range open {
		x.answer(q)
	}
}

// wait returns after a time, or at once when the recordings are whole.
func (x *explainer) wait(t time.Duration) {
	select {
	case <-time.After(t):
	case <-x.ending:
	}
}

// answer reports whether there is nothing more to say about a question.
func (x *explainer) answer(q question) bool {
	predictions, err := whatif.PredictProcess(q.recording, q.of.PID)
	if errors.Is(err, whatif.ErrTooLong) {
		return true
	}
	o := *q.of
	if err != nil || !whatif.Explain(&o, predictions) {
		return false
	}
	if err := x.dir.rewrite(q.page, &o); err != nil {
		x.told(err.Error())
	} else if o.Predicted != "" {
		x.told(fmt.Sprintf("%s now says: %s", q.page, o.Predicted))
	}
	return true
}
