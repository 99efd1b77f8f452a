package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// StackMode says how stacks are captured.
type StackMode string

const (
	StacksAuto         StackMode = "auto" // unwind, and follow frame pointers where that cannot run
	StacksUnwind       StackMode = "unwind"
	StacksFramePointer StackMode = "fp"
)

// analysePatience bounds how long one process's analysis is waited for.
const analysePatience = 30 * time.Second

// A capturer turns stack records into frames, with an unwinder if there is one.
type capturer struct {
	loader  unwind.Loader
	sym     *symbolize.Symbolizer
	mode    string   // for people
	changed chan int // processes with new mappings
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu      sync.Mutex
	reasons map[string]uint64 // incomplete stacks by reason
}

func newCapturer(sym *symbolize.Symbolizer, opts Options) *capturer {
	return &capturer{
		sym:     sym,
		mode:    "frame pointers",
		changed: make(chan int, 1024),
		stop:    func() {},
		loader:  unwind.Loader{Options: unwind.Options{NoMemo: opts.NoMemo, VerifyStacks: opts.VerifyStacks}},
	}
}

// loaded is called once the tracer is open. It returns an error for a mode
// that was asked for and cannot run, and a warning for one that took its place.
func (c *capturer) loaded(mode StackMode) (warning string, err error) {
	if mode == StacksFramePointer {
		return "", nil
	}
	if c.loader.Err != nil {
		if mode == StacksUnwind {
			return "", c.loader.Err
		}
		c.mode = "frame pointers (the unwinder cannot run)"
		return fmt.Sprintf("stacks end where code has no frame pointers, because the unwinder cannot run here: %v", c.loader.Err), nil
	}
	c.mode = "unwound, verified memo"
	if c.loader.Options.NoMemo {
		c.mode = "unwound"
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.done.Go(func() { c.follow(ctx) })
	return "", nil
}

// analyse makes the stacks of pid complete from now on.
func (c *capturer) analyse(ctx context.Context, pid int) error {
	if c.loader.Unwinder == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, analysePatience)
	defer cancel()
	return c.loader.Unwinder.Analyze(ctx, pid)
}

// follow analyses processes again whose mappings changed. Many changes of one
// process that wait are one.
func (c *capturer) follow(ctx context.Context) {
	for {
		var pids map[int]bool
		select {
		case <-ctx.Done():
			return
		case pid := <-c.changed:
			pids = map[int]bool{pid: true}
		}
		for more := true; more; {
			select {
			case pid := <-c.changed:
				pids[pid] = true
			default:
				more = false
			}
		}
		for pid := range pids {
			// A process that has just ended cannot be analysed: its stacks,
			// if any still come, are counted as incomplete.
			_ = c.analyse(ctx, pid)
		}
	}
}

// mapped says that pid has new mappings.
func (c *capturer) mapped(pid int) {
	c.sym.Invalidate(uint32(pid))
	if c.loader.Unwinder == nil {
		return
	}
	select {
	case c.changed <- pid:
	default: // a thousand wait: the unwinder will find it by itself
	}
}

// ended says that pid replaced its image or ended.
func (c *capturer) ended(pid uint32) {
	c.sym.Forget(pid)
	if u := c.loader.Unwinder; u != nil {
		_ = u.Forget(int(pid)) // bounded without it
	}
}

// frames locates the frames of a stack, leaf first. The process must be there
// still, as far as its names are to be known.
func (c *capturer) frames(st *probes.Stack) []frame {
	if c.loader.Unwinder == nil {
		out := make([]frame, len(st.Words))
		for i, pc := range st.Words {
			out[i].address = c.sym.Locate(st.Process.PID, pc, symbolize.Return)
		}
		return out
	}
	decoded := c.loader.Unwinder.Decode(st.Process.PID, st.Flags, st.Words)
	if decoded.Err != nil {
		c.mu.Lock()
		if c.reasons == nil {
			c.reasons = map[string]uint64{}
		}
		if len(c.reasons) < 100 {
			c.reasons[decoded.Err.Error()]++
		}
		c.mu.Unlock()
	}
	out := make([]frame, len(decoded.Frames))
	for i, f := range decoded.Frames {
		if f.Kind == unwind.Python {
			out[i].python = pythonFrame(f)
			continue
		}
		lookup := symbolize.Exact
		if f.Return {
			lookup = symbolize.Return
		}
		out[i].address = c.sym.Locate(st.Process.PID, f.Addr, lookup)
	}
	return out
}

func pythonFrame(f unwind.Frame) *snapshot.Location {
	line := snapshot.Line{Function: f.Function, File: f.File, Line: f.Line}
	if f.Function == "" {
		line.Function, line.Reason = "[python function]", "its code object could not be read"
	}
	return &snapshot.Location{Lines: []snapshot.Line{line}}
}

// loss returns what the unwinder lost.
func (c *capturer) loss() []snapshot.Counter {
	u := c.loader.Unwinder
	if u == nil {
		return nil
	}
	s, _, err := u.Stats()
	if err != nil {
		return nil
	}
	out := []snapshot.Counter{
		{Name: "stacks_incomplete", Value: s.Incomplete, Help: "unwound stacks that end before _start or a thread's start"},
		{Name: "stacks_unknown_process", Value: s.UnknownProcess, Help: "stacks that follow frame pointers because their process was not analysed yet"},
		{Name: "stacks_fallback", Value: s.NoRecord + s.NoChain + s.Empty, Help: "stacks that follow frame pointers because the unwinder found nothing or had no room"},
		{Name: "stacks_cut", Value: s.TooLong, Help: "stacks whose outermost frames were cut off"},
		{Name: "stacks_not_sent", Value: s.NotSent, Help: "stacks that had to be sent again because the ring buffer was full"},
		{Name: "stack_memo_mismatches", Value: s.Mismatched, Help: "memoized stacks that a full unwind contradicted: please report this"},
	}
	return out
}

// notes are the reasons for incomplete stacks, and what the memo did.
func (c *capturer) notes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for reason, n := range c.reasons {
		out = append(out, fmt.Sprintf("%d different stacks: %s", n, reason))
	}
	if u := c.loader.Unwinder; u != nil {
		if s, _, err := u.Stats(); err == nil {
			out = append(out, fmt.Sprintf("stacks: %d from the memo, %d unwound, %d of them not fit for the memo", s.MemoHits, s.Unwound, s.NotKept))
			if s.Verified > 0 {
				out = append(out, fmt.Sprintf("verified: %d memoized stacks were unwound as well, %d differed", s.Verified, s.Mismatched))
			}
		}
	}
	return out
}

// close releases the unwinder. The probes must be off.
func (c *capturer) close() error {
	c.stop()
	c.done.Wait()
	if u := c.loader.Unwinder; u != nil {
		return u.Close()
	}
	return nil
}

// gone tells whether an error says that a process is no longer there.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unwind.ErrNotAnalyzed)
}
