package unwind

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A Mode says how stacks are captured.
type Mode string

const (
	Auto         Mode = "auto"   // unwind, and follow frame pointers where that cannot run
	Always       Mode = "unwind" // fail where that cannot run
	FramePointer Mode = "fp"
)

// How long a process's new mappings wait to be analysed: most programs that a
// process starts end sooner than an analysis takes. One that uses CUDA does not
// wait.
const (
	mappedDelay = 100 * time.Millisecond
	forkedDelay = 10 * time.Millisecond
	// analysePatience bounds how long one process's analysis is waited for.
	analysePatience = 30 * time.Second
)

// A Taker takes the stacks of traced processes: it is a probes.StackTaker. It
// has an Unwinder if Mode says so and one can run.
type Taker struct {
	Mode Mode
	// Options but Maps, Constants, Attach and Types.
	Options Options

	unwinder *Unwinder
	failed   error // why there is none although it was wanted
	users    *userTable

	mu   sync.Mutex
	cuda map[int]bool // processes that map a library of CUDA's
}

// Load starts the unwinder and returns its return program, nil when frame
// pointers are to be followed.
func (t *Taker) Load(maps map[string]*ebpf.Map, constants map[string]any, attach ebpf.AttachType, types *btf.Cache) (*ebpf.Program, error) {
	t.cuda = map[int]bool{}
	var err error
	if t.users, err = newUserTable(maps); err != nil {
		return nil, err
	}
	if t.Mode == FramePointer {
		return nil, nil
	}
	opts := t.Options
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

// How says, for people, how stacks are taken, and what the user should know of
// it, "" for nothing. It is for after Load.
func (t *Taker) How() (mode, warning string) {
	switch {
	case t.failed != nil:
		return "frame pointers (the unwinder cannot run)",
			fmt.Sprintf("stacks end where code has no frame pointers, because the unwinder cannot run here: %v", t.failed)
	case t.unwinder == nil:
		return "frame pointers", ""
	}
	return unwoundHow(t.Options.NoMemo, t.MemoErr())
}

// unwoundHow is How with an unwinder. memoErr is why the memo cannot run
// although it is wanted.
func unwoundHow(noMemo bool, memoErr error) (mode, warning string) {
	switch {
	case noMemo:
		return "unwound", ""
	case memoErr != nil:
		return "unwound (the memo cannot run)",
			fmt.Sprintf("each stack is unwound in full, which costs several times more, because the memo cannot run here: %v", memoErr)
	}
	return "unwound, verified memo", ""
}

// Err is why frame pointers are followed although stacks were to be unwound, nil
// when that is not so.
func (t *Taker) Err() error { return t.failed }

// Unwinds tells whether there is an unwinder: then stacks are for Decode.
func (t *Taker) Unwinds() bool { return t.unwinder != nil }

// Decode is Unwinder.Decode.
func (t *Taker) Decode(pid, flags, frames uint32, words []uint64) Stack {
	return t.unwinder.Decode(pid, flags, frames, words)
}

// Analyze makes the stacks of pid complete from here on. It waits.
func (t *Taker) Analyze(pid int) error {
	if t.unwinder == nil {
		return nil
	}
	t.delay(pid, true)
	ctx, cancel := context.WithTimeout(context.Background(), analysePatience)
	defer cancel()
	return t.unwinder.Analyze(ctx, pid)
}

// UserOf returns the number by which the caller's programs know the user of a traced
// process, 0 for a process that is not traced.
func (t *Taker) UserOf(pid int) uint16 {
	user, _ := t.users.of(pid)
	return user
}

// delay returns how long new mappings of pid wait. cuda says that it maps a
// library of CUDA's.
func (t *Taker) delay(pid int, cuda bool) time.Duration {
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

// Mapped says that pid has the new mapping m, of CUDA's if cuda is set.
func (t *Taker) Mapped(pid int, m proc.Mapping, cuda bool) {
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
func (t *Taker) Forked(parent, child int) {
	if t.unwinder == nil {
		return
	}
	delay := t.delay(parent, false)
	if delay == 0 {
		delay = forkedDelay
	}
	t.unwinder.Changed(child, delay)
}

// Replaced says that pid replaced its image. Some of the new one's mappings may
// have been told before.
func (t *Taker) Replaced(pid int) {
	if t.unwinder != nil {
		t.unwinder.Ended(pid)
		t.unwinder.Changed(pid, t.delay(pid, false))
	}
}

// Ended says that pid ended.
func (t *Taker) Ended(pid int) {
	if t.unwinder == nil {
		return
	}
	t.mu.Lock()
	delete(t.cuda, pid)
	t.mu.Unlock()
	t.unwinder.Ended(pid)
}

// Invalidate makes the next stacks of pid be unwound in full: the memo names
// one that was dropped.
func (t *Taker) Invalidate(pid int) {
	if t.unwinder != nil {
		// It fails where there is no memory for one more process: that has no
		// memo then.
		_ = t.unwinder.Invalidate(pid)
	}
}

// drainPatience bounds how long stacks that come late are waited for.
const drainPatience = 2 * time.Second

// Drain waits until stacks that led through code which was not known have been sent
// as well. It is for when the caller's programs send no more, or before all that
// came so far is shown.
func (t *Taker) Drain() {
	if t.unwinder != nil {
		t.unwinder.Drain(drainPatience)
	}
}

// Loss returns what the unwinder lost.
func (t *Taker) Loss() []loss.Counter {
	if t.unwinder == nil {
		return nil
	}
	return t.unwinder.loss()
}

// slow is how long an analysis may take before the user is told.
const slow = 5 * time.Second

// Notes say what the memo did, and what keeps an analysis.
func (t *Taker) Notes() (out []string) {
	u := t.unwinder
	if u == nil {
		return nil
	}
	if pid, busy := u.Busy(); busy > slow {
		out = append(out, fmt.Sprintf("the analysis of process %d has taken %.0f s: stacks of new processes follow frame pointers meanwhile", pid, busy.Seconds()))
	}
	if u.memoErr != nil {
		out = append(out, fmt.Sprintf("unwind tables are not kept for later runs: %v", u.memoErr))
	}
	if s, _, err := u.Stats(); err == nil {
		out = append(out, fmt.Sprintf("stacks: %d from the memo, %d unwound, %d of them not fit for the memo", s.MemoHits, s.Unwound, s.NotKept))
		if s.Verified > 0 {
			out = append(out, fmt.Sprintf("verified: %d memoized stacks were unwound as well, %d differed", s.Verified, s.Mismatched))
		}
	}
	if u.kernel.freedErr != nil {
		out = append(out, "Python code objects are read for each stack: the kernel takes no program that counts those that are freed, as Linux 6.0 does")
	}
	return append(out, u.codes.notes()...)
}

// Stats returns what came of the stacks so far, nothing without an unwinder.
func (t *Taker) Stats() (Stats, error) {
	if t.unwinder == nil {
		return Stats{}, nil
	}
	s, _, err := t.unwinder.Stats()
	return s, err
}

// MemoErr is why each stack is unwound in full although the memo is wanted, nil when
// that is not so.
func (t *Taker) MemoErr() error {
	if t.unwinder == nil {
		return nil
	}
	return t.unwinder.kernel.memoErr
}

// Close releases the unwinder. The probes must be off.
func (t *Taker) Close() error {
	if t.unwinder != nil {
		return t.unwinder.Close()
	}
	return nil
}
