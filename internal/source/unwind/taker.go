package unwind

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A Mode is how stacks are captured.
type Mode string

const (
	Auto         Mode = "auto"   // unwind, and follow frame pointers where that cannot run
	Always       Mode = "unwind" // fail where that cannot run
	FramePointer Mode = "fp"
)

// How long a process's new mappings wait to be analysed. Most programs that a process
// starts end before an analysis would. A process that uses CUDA does not wait.
const (
	mappedDelay = 100 * time.Millisecond
	forkedDelay = 10 * time.Millisecond
	// analysePatience bounds how long Analyze waits for one process.
	analysePatience = 30 * time.Second
)

// A Capture captures the stacks of traced processes: it is a probes.StackTaker. It
// has an Unwinder if Mode asks for one and one can run.
type Capture struct {
	Mode Mode
	// Options but Maps, Constants, Attach and Types.
	Options Options

	unwinder *Unwinder
	failed   error // why there is none although Mode asks for one
	users    *userTable

	mu   sync.Mutex
	cuda map[int]bool // processes that map a library of CUDA's
}

// NewCapture returns a Capture, and begins to read what its Load needs, which takes 7 ms.
func NewCapture(mode Mode, opts Options) *Capture {
	if mode != FramePointer {
		opts.object = sync.OnceValues(bpf.LoadUnwind)
		go func() { _, _ = opts.object() }() // Load has its error
	}
	return &Capture{Mode: mode, Options: opts}
}

// Load starts the unwinder and returns its return program, nil if stacks follow frame
// pointers.
func (t *Capture) Load(maps map[string]*ebpf.Map, constants map[string]any, attach ebpf.AttachType, types *btf.Cache) (*ebpf.Program, error) {
	t.cuda = map[int]bool{}
	var err error
	if t.users, err = newUserTable(maps); err != nil {
		return nil, err
	}
	if t.Mode == FramePointer {
		return nil, nil
	}
	opts := t.Options
	t.Options.object = nil // a megabyte
	opts.Maps, opts.Constants, opts.Attach, opts.Types, opts.users = maps, constants, attach, types, t.users
	u, err := Start(context.Background(), opts)
	if err != nil {
		t.failed = err
		if t.Mode == Always {
			return nil, err
		}
		return nil, nil
	}
	t.unwinder = u
	return u.kernel.exit, nil
}

// Describe describes, for people, how stacks are captured, and what the user should know about
// it, "" for nothing. Call it after Load.
func (t *Capture) Describe() (mode, warning string) {
	switch {
	case t.failed != nil:
		return "frame pointers (the unwinder cannot run)",
			fmt.Sprintf("stacks end where code has no frame pointers, because the unwinder cannot run here: %v", t.failed)
	case t.unwinder == nil:
		return "frame pointers", ""
	case t.Options.NoMemo:
		return "unwound", ""
	}
	return "unwound, verified memo", ""
}

// Err returns why stacks follow frame pointers although Mode asks for the unwinder, nil if
// they do not.
func (t *Capture) Err() error { return t.failed }

// Unwinds reports whether there is an unwinder. If so, Decode reads its stacks.
func (t *Capture) Unwinds() bool { return t.unwinder != nil }

// Decode is Unwinder.Decode.
func (t *Capture) Decode(pid, flags, frames uint32, words []uint64) Stack {
	return t.unwinder.Decode(pid, flags, frames, words)
}

// Analyze waits until the stacks of pid are complete.
func (t *Capture) Analyze(pid int) error {
	if t.unwinder == nil {
		return nil
	}
	t.delay(pid, true)
	ctx, cancel := context.WithTimeout(context.Background(), analysePatience)
	defer cancel()
	return t.unwinder.Analyze(ctx, pid)
}

// UserOf returns the number of a traced process's user in the caller's programs, 0 for a
// process that is not traced.
func (t *Capture) UserOf(pid int) uint16 {
	user, _ := t.users.userOf(pid)
	return user
}

// delay returns how long new mappings of pid wait. cuda says that it maps a CUDA library.
func (t *Capture) delay(pid int, cuda bool) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cuda {
		t.cuda[pid] = true
	}
	if t.cuda[pid] {
		return 0
	}
	return mappedDelay
}

// Mapped says that pid has the new mapping m, of a CUDA library if cuda is set.
func (t *Capture) Mapped(pid int, m proc.Mapping, cuda bool) {
	if t.unwinder == nil {
		return
	}
	if delay := t.delay(pid, cuda); delay > 0 {
		t.unwinder.Changed(pid, delay)
		return
	}
	t.unwinder.Mapped(pid, m, mappedDelay)
}

// Forked says that child began with the mappings of parent.
func (t *Capture) Forked(parent, child int) {
	if t.unwinder == nil {
		return
	}
	delay := t.delay(parent, false)
	if delay == 0 {
		delay = forkedDelay
	}
	t.unwinder.Changed(child, delay)
}

// Replaced says that pid replaced its image. Mapped may have been called before for some of
// the new mappings.
func (t *Capture) Replaced(pid int) {
	if t.unwinder != nil {
		t.unwinder.Ended(pid)
		t.unwinder.Changed(pid, t.delay(pid, false))
	}
}

// Ended says that pid ended.
func (t *Capture) Ended(pid int) {
	if t.unwinder == nil {
		return
	}
	t.mu.Lock()
	delete(t.cuda, pid)
	t.mu.Unlock()
	t.unwinder.Ended(pid)
}

// Invalidate empties the memo of pid, so that its next stacks are unwound in full: the memo
// names a stack that was dropped.
func (t *Capture) Invalidate(pid int) {
	if t.unwinder != nil {
		// It fails if there is no memory for one more process, which then has no memo.
		_ = t.unwinder.Invalidate(pid)
	}
}

// drainPatience bounds how long Drain waits.
const drainPatience = 2 * time.Second

// Drain waits until stacks through code that was not known have been sent too. Call it when
// the caller's programs send no more, or before showing all that came so far.
func (t *Capture) Drain() {
	if t.unwinder != nil {
		t.unwinder.Drain(drainPatience)
	}
}

// Loss returns the unwinder's counters.
func (t *Capture) Loss() []loss.Counter {
	if t.unwinder == nil {
		return nil
	}
	return t.unwinder.loss()
}

// slow is how long an analysis may take before a note says so.
const slow = 5 * time.Second

// Notes describe the memo's work, and an analysis that does not end.
func (t *Capture) Notes() (out []string) {
	u := t.unwinder
	if u == nil {
		return nil
	}
	if pid, busy := u.busy.Process(); busy > slow {
		out = append(out, fmt.Sprintf("the analysis of process %d has taken %.0f s: stacks of new processes follow frame pointers until it ends", pid, busy.Seconds()))
	}
	if u.memoErr != nil {
		out = append(out, fmt.Sprintf("unwind tables are not kept for later runs: %v", u.memoErr))
	}
	if s, err := u.Stats(); err == nil {
		out = append(out, fmt.Sprintf("stacks: %d from the memo, %d unwound, %d of them not fit for the memo", s.MemoHits, s.Unwound, s.NotStored))
		if s.Verified > 0 {
			out = append(out, fmt.Sprintf("verified: %d memoized stacks were unwound as well, %d differed", s.Verified, s.Mismatched))
		}
	}
	return out
}

// Stats is Unwinder.Stats.
func (t *Capture) Stats() (Stats, error) { return t.unwinder.Stats() }

// Close releases the unwinder. The probes must be off.
func (t *Capture) Close() error {
	if t.unwinder != nil {
		return t.unwinder.Close()
	}
	return nil
}
