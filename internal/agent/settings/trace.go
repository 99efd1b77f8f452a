package settings

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/source/session"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// Trace are the settings that every trace has, the agent's too.
type Trace struct {
	Tensors     bool
	Window      time.Duration // of tensors, 0 for always
	WindowEvery time.Duration
	Holders     time.Duration // between two readings of heaps, 0 for none
	API, Stacks string
	NoCache     bool
	MaxLive     int
	RecordMax   int64 // bytes, 0 for no limit
	OOMDir      string
	OOMMax      int
}

// NewTrace returns the defaults of a trace.
func NewTrace() Trace {
	return Trace{API: string(probes.APIDriver), Stacks: string(unwind.Auto), MaxLive: 2_000_000, OOMMax: 10, WindowEvery: defaultEvery}
}

const (
	groupTrace = "Tracing"
	groupDisk  = "Flight recorder"
)

// Table returns the rows of the settings, bound to t.
func (t *Trace) Table() []*Setting {
	return []*Setting{
		{groupTrace, "tensors", flag(&t.Tensors), true, "look inside PyTorch's caching allocator: show the tensors in its segments, and what is cached"},
		{groupTrace, "tensors-window", duration(&t.Window, 0), true, "look inside PyTorch's caching allocator in windows of this length only, such as 2s, which costs a program far less than --tensors: what each stack allocates, how long that lives, and what it holds at the peak of a training step"},
		{groupTrace, "tensors-every", duration(&t.WindowEvery, 0), true, "with --tensors-window: the time from the beginning of one window to that of the next"},
		{groupTrace, "holders", duration(&t.Holders, 0), true, "read the heaps of Python programs this often, such as 30s, to find which object keeps each tensor, or off"},
		{groupTrace, "api", oneOf(&t.API, probes.APIDriver, probes.APIRuntime, probes.APIBoth), true, "which CUDA API to probe: driver, runtime, or both (bytes are then counted once, at the driver, and events also name the runtime call)"},
		{groupTrace, "stacks", oneOf(&t.Stacks, unwind.Auto, unwind.Always, unwind.FramePointer), true, "how stacks are taken: unwind (complete), fp (the kernel's frame-pointer walk), auto (unwind where it can run)"},
		{groupTrace, "no-cache", flag(&t.NoCache), true, "neither read nor write unwind tables in " + unwind.CacheDir},
		{groupTrace, "max-live", number(&t.MaxLive, 1), true, "the most live allocations to keep with a call stack; the bytes of further ones are counted without a stack"},
		{groupDisk, "record-max", size(&t.RecordMax, record.MinBytes), false, "the most bytes of the recording, such as 512MiB; beyond that, its oldest part is dropped"},
		{groupDisk, "oom-dir", text(&t.OOMDir), true, "write a report and a profile to this directory whenever an allocation fails because memory ran out"},
		{groupDisk, "oom-max", number(&t.OOMMax, 1), false, "the most out-of-memory reports in --oom-dir; beyond that, a trace writes no more, and the agent removes the oldest"},
	}
}

// leastHolders is the least time between two readings of heaps.
const leastHolders = time.Second

// leastWindow is the least length of a window of tensors, and defaultEvery the time from one to the
// next.
const (
	leastWindow  = 100 * time.Millisecond
	defaultEvery = time.Minute
)

// Check finds settings that do not fit together.
func (t *Trace) Check() error {
	switch {
	case t.Window > 0 && t.Tensors:
		return errors.New("tensors-window replaces tensors: give only one of them")
	case t.Window > 0 && (t.Window < leastWindow || t.WindowEvery < 2*t.Window):
		return fmt.Errorf("tensors-window must be at least %v, and tensors-every at least twice as long as the window", leastWindow)
	case t.Window == 0 && t.WindowEvery != defaultEvery:
		return errors.New("tensors-every needs tensors-window")
	case t.Holders != 0 && t.Holders < leastHolders:
		return fmt.Errorf("holders must be at least %v, or off", leastHolders)
	}
	return nil
}

// Options returns what the settings mean for a session.
func (t *Trace) Options() session.Options {
	cache := unwind.CacheDir
	if t.NoCache {
		cache = ""
	}
	return session.Options{
		Tensors: t.Tensors || t.Window > 0, Windows: session.WindowOptions{Length: t.Window, Every: t.WindowEvery}, API: probes.API(t.API), MaxLive: t.MaxLive,
		Stacks: unwind.Mode(t.Stacks), CacheDir: cache, OutOfMemoryMax: t.OOMMax,
		Heaps: session.HeapOptions{Every: t.Holders},
	}
}
