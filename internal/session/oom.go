package session

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

const (
	// recoveryWindow is how long a failed call's thread may take to succeed
	// with the same size, and to fail again as part of one incident.
	recoveryWindow = 700 * time.Millisecond
	// longestIncident bounds an incident whose thread gives physical memory
	// back: with expandable segments PyTorch does so with thousands of pieces
	// before it says what it wanted.
	longestIncident = 5 * time.Second
	// incidentPause is the least time between two incidents that are recorded.
	incidentPause = time.Second
)

// A recorder notices calls that fail for want of memory and keeps what was
// live at that moment. Its methods but record run on the tracer's goroutine.
type recorder struct {
	session *Session
	max     int
	record  func(*snapshot.OutOfMemory)

	open map[threadKey]*incident
	last time.Time
	n    int
	// suppressed are incidents that were too many or too close. Guarded by
	// the session's mu.
	suppressed uint64
}

type threadKey struct {
	proc event.Process
	tid  uint32
}

// An incident is one or more failed calls of one thread for one size.
type incident struct {
	first     event.Event
	at        time.Time
	last      time.Time // when it failed, or gave physical memory back
	calls     int
	recovered bool
	framework *snapshot.FrameworkMemory
	state     state
	gpus      chan []snapshot.GPUMemory
	over      bool // nothing more will be learnt
}

// ended tells whether nothing more is waited for.
func (in *incident) ended(now time.Time) bool {
	return in.over || now.Sub(in.last) >= recoveryWindow || now.Sub(in.at) >= longestIncident
}

// observe looks at one event, after the ledger took it.
func (r *recorder) observe(e *event.Event) {
	if r == nil {
		return
	}
	key := threadKey{e.Proc, e.TID}
	allocates := e.Op == event.OpAlloc || e.Op == event.OpHandleCreate
	switch in := r.open[key]; {
	case e.Op == event.OpOutOfMemory:
		framework := &snapshot.FrameworkMemory{Name: "PyTorch", Requested: int64(e.Size), Allocated: int64(e.Handle), Reserved: int64(e.Part)}
		if in == nil {
			in = r.begin(key, e) // a limit of its own: no driver call failed
		}
		if in != nil {
			in.framework, in.recovered, in.over = framework, false, true
		}
	case allocates && e.Result == event.OutOfMemory:
		if in == nil {
			in = r.begin(key, e)
		}
		if in != nil {
			in.calls++
			in.recovered = false
		}
	case allocates && e.Result == event.Success && in != nil && e.Size == in.first.Size:
		// Physical memory comes in many pieces of one size: another may fail.
		in.recovered, in.over = true, e.Op == event.OpAlloc
	case in != nil && (e.Op == event.OpUnmap || e.Op == event.OpHandleRelease):
		in.last = time.Now()
	}
	r.finish(time.Now())
}

// begin keeps what is live now. It returns nil for an incident too many.
func (r *recorder) begin(key threadKey, e *event.Event) *incident {
	now := time.Now()
	if r.n >= r.max || now.Sub(r.last) < incidentPause {
		r.session.mu.Lock()
		r.suppressed++
		r.session.mu.Unlock()
		return nil
	}
	r.n++
	r.last = now
	in := &incident{first: *e, at: now, last: now, state: r.session.copy(false), gpus: make(chan []snapshot.GPUMemory, 1)}
	if e.Device == event.NoDevice {
		r.session.mu.Lock()
		in.first.Device = r.session.ledger.DeviceOf(e.Proc, e.Ctx)
		r.session.mu.Unlock()
	}
	go r.session.readings.askMore(func() { in.gpus <- r.session.gpus.memory() })
	r.open[key] = in
	return in
}

// finish reports the incidents whose window has passed.
func (r *recorder) finish(now time.Time) {
	if r == nil {
		return
	}
	for key, in := range r.open {
		if in.ended(now) {
			delete(r.open, key)
			r.session.run.Go(func() { r.record(r.session.incident(in)) })
		}
	}
}

// finishAll reports what is still open; the tracer has stopped.
func (r *recorder) finishAll() {
	if r != nil {
		r.finish(time.Now().Add(longestIncident))
	}
}

// incident builds what is reported.
func (s *Session) incident(in *incident) *snapshot.OutOfMemory {
	e := &in.first
	var gpus []snapshot.GPUMemory // and with them, which GPU is which
	select {
	case gpus = <-in.gpus:
	case <-time.After(2 * readingPatience): // the report is worth more than their figures
	}
	b := s.newBuilder(in.state, e)
	site := siteOf(e)
	oom := &snapshot.OutOfMemory{
		Time: s.boot.Add(time.Duration(e.Time)), PID: int(e.Proc.PID), Process: b.names[e.Proc],
		Thread: int(e.TID), Requested: int64(e.Size), API: probes.APIName(e.API), GPU: s.gpus.label(&site), Calls: in.calls,
		Stack: b.stack(&site), Recovered: in.recovered, Framework: in.framework,
		GPUs: gpus, Snapshot: s.build(in.state),
	}
	return oom
}
