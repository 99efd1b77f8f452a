package session

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/source/frames"
	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

const (
	// nameTries bounds how often name asks for names: new places may come during each try.
	nameTries = 3
	// catchUpPatience bounds the wait for events. It is several times what their reader needs.
	catchUpPatience = time.Second
	catchUpInterval = time.Millisecond
)

// sources are the sources of records, and the store that they report to.
type sources struct {
	*store
	opts   Options
	tracer *probes.Tracer
	frames *frames.Source
	gpus   *gpu.Reader // nil without NVML

	sheds sheds
}

// request asks the sources for what the state wants. It does not wait.
func (s *sources) request(w *state.Wants) {
	if w.Reading && s.gpus != nil {
		s.gpus.Soon(w.Memory)
	}
	for _, id := range w.Identities {
		s.frames.Identify(id)
	}
}

// ask waits for a reading of the driver's figures.
func (s *sources) ask() {
	if s.gpus != nil {
		s.gpus.Ask()
	}
}

// catchUp waits until every event from before now was applied, for a bounded time.
func (s *sources) catchUp() {
	at := monotonic()
	for end := time.Now().Add(catchUpPatience); s.awaits(at) && time.Now().Before(end); {
		s.tracer.Wake()
		time.Sleep(catchUpInterval)
	}
}

// wait waits until the events so far, and their stacks, were applied, for a bounded time. Stacks that
// are unwound from copies come in the same way as events.
func (s *sources) wait() {
	s.frames.Drain()
	s.catchUp()
	s.frames.Wait()
}

// name finds the names of the places without one.
func (s *sources) name() {
	for try := range nameTries {
		s.mu.Lock()
		places, again := s.state.Unnamed()
		s.mu.Unlock()
		if try == 0 {
			places = append(places, again...)
		}
		if len(places) == 0 {
			return
		}
		s.frames.Name(places)
	}
}

// losses returns the losses of all sources.
func (s *sources) losses() *record.Loss {
	out := &record.Loss{Counters: append(s.tracer.Loss(), s.frames.Loss()...), Notes: s.frames.Notes()}
	if s.gpus != nil {
		out.Counters = append(out.Counters, s.gpus.Loss()...)
		out.Notes = append(out.Notes, s.gpus.Notes()...)
	}
	out.Counters = append(out.Counters, s.recordingLoss()...)
	if s.opts.Loss != nil {
		out.Counters = append(out.Counters, s.opts.Loss()...)
	}
	out.Notes = append(out.Notes, s.tracer.Notes()...)
	out.Notes = append(out.Notes, s.sheds.notes()...)
	counters, notes := s.gateLosses()
	out.Counters, out.Notes = append(out.Counters, counters...), append(out.Notes, notes...)
	return out
}

func (s *sources) warn(text string) {
	s.apply(&record.Note{Text: text})
	if s.opts.Warn != nil {
		s.opts.Warn(text)
	}
}

// watchesKernel reports whether to trace the calls of NVIDIA's kernel driver. It does not if a driver is
// loaded whose version cannot be read, or whose calls were not compared: they could be misread.
func (s *sources) watchesKernel(loaded bool) bool {
	const without = "what the kernel driver takes for itself cannot be split: "
	switch {
	case s.opts.API == probes.APIRuntime:
		return false
	case s.trace.Driver == "" && loaded:
		s.warn(without + "the version of the loaded driver cannot be read from /proc/driver/nvidia/version")
		return false
	case s.trace.Driver != "" && !probes.DriverKnown(s.trace.Driver):
		s.warn(without + "the calls of version " + s.trace.Driver + " are not known; " + probes.DriverFix)
		return false
	}
	return true
}

// readGPUs starts to read the driver's figures. Without NVML everything else works, and a warning says
// why the figures are missing.
func (s *sources) readGPUs(opened func() (*gpu.Reader, string, error)) {
	reader, version, err := opened()
	if err != nil {
		text := "the driver's own totals are not known: " + err.Error()
		if !s.opts.Held {
			text += "; memory that a process allocated before the trace is missing from its figures"
		}
		s.warn(text)
		return
	}
	s.gpus, s.trace.NVML = reader, true
	if version != "" {
		s.trace.Driver = version
	}
	reader.Memory = s.opts.GPUMemory
	go reader.Run()
}
