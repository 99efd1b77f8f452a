package unwind

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// Stats count the results of stack capture. The order is that of enum uw_stat in
// bpf/unwind.bpf.c.
type Stats struct {
	MemoHits       uint64 // the memo knew the stack
	Unwound        uint64 // unwound in full
	Incomplete     uint64 // of those, ended early
	Truncated      uint64 // of those, too deep to record every frame
	Copied         uint64 // reached code not known yet: unwound later, from a copy
	NotCopied      uint64 // reached such code, but there was no room for a copy
	UnknownProcess uint64 // process not analysed yet: frame pointers
	NoRoom         uint64 // no free slot, because too many stacks were being captured: frame pointers
	NotSent        uint64 // the ring had no room: the event names an unknown stack
	NotStored      uint64 // not fit for the memo
	Verified       uint64 // memo hits that were unwound as well
	Mismatched     uint64 // of those, with another result: must be 0
}

// Stats returns the counts so far, zeros without an unwinder.
func (u *Unwinder) Stats() (s Stats, err error) {
	if u == nil {
		return s, nil
	}
	for i, to := range []*uint64{
		&s.MemoHits, &s.Unwound, &s.Incomplete, &s.Truncated, &s.Copied, &s.NotCopied, &s.UnknownProcess, &s.NoRoom,
		&s.NotSent, &s.NotStored, &s.Verified, &s.Mismatched,
	} {
		if err := u.kernel.maps["unwind_stats"].Lookup(uint32(i), to); err != nil {
			return s, fmt.Errorf("read stack counters: %w", err)
		}
	}
	return s, nil
}

// The counters of stacks that are not complete.
var (
	lostStacksIncomplete     = loss.Of("stacks_incomplete", "unwound stacks that end before _start or a thread's start")
	lostStacksUnknownProcess = loss.Of("stacks_unknown_process", "stacks taken by frame pointers because their process was not analysed yet")
	lostStacksNotCopied      = loss.Of("stacks_not_copied", "stacks that end at code of a library just loaded because too many others waited for its analysis")
	lostStacksCopyFailed     = loss.Of("stacks_copy_failed", "stacks without frames because their copy could not be unwound")
	lostStacksFallback       = loss.Of("stacks_fallback", "stacks taken by frame pointers because too many other stacks were being unwound at the same time")
	lostStacksTruncated      = loss.Of("stacks_truncated", "unwound stacks that are too deep to keep every frame: the innermost and outermost frames are shown")
	lostStacksNotSent        = loss.Of("stacks_not_sent", "stacks that had to be sent again because the ring buffer was full")
	lostPythonFramesUnnamed  = loss.Of("python_frames_unnamed", "Python frames without a name because their code could not be read, or had already been freed")
	lostPythonsUnknown       = loss.Of("pythons_unknown", "processes with an unknown Python (CPython 3.6 to 3.14 is supported): their stacks lack the Python functions")
	lostStackMemoMismatches  = loss.Of("stack_memo_mismatches", "memoized stacks that a full unwind contradicted: please report this")
	lostAnalysesPutOff       = loss.Of("analyses_put_off", "processes whose mappings were not analysed at once because too many waited")
	lostUnwinderRunsMissed   = loss.Of("unwinder_runs_missed", "runs of the unwinder that the kernel skipped: their events are lost")
)

func (u *Unwinder) loss() []loss.Counter {
	s, err := u.Stats()
	if err != nil {
		return nil
	}
	var missed uint64
	if s, err := u.kernel.exit.Stats(); err == nil {
		missed = s.RecursionMisses
	}
	return append([]loss.Counter{
		lostStacksIncomplete.Counter(s.Incomplete),
		lostStacksUnknownProcess.Counter(s.UnknownProcess),
		lostStacksNotCopied.Counter(s.NotCopied),
		lostStacksCopyFailed.Counter(u.copies.failed.Load()),
		lostStacksFallback.Counter(s.NoRoom),
		lostStacksTruncated.Counter(s.Truncated),
		lostStacksNotSent.Counter(s.NotSent),
		lostPythonFramesUnnamed.Counter(u.unnamed.Load()),
		lostPythonsUnknown.Counter(u.pythons.count.Load()),
		lostStackMemoMismatches.Counter(s.Mismatched),
		lostAnalysesPutOff.Counter(u.schedule.dropped.Load()),
		lostUnwinderRunsMissed.Counter(missed),
	}, u.memo.Loss()...)
}

// errNotCopied is UW_ERR_NOT_COPIED (bpf/unwind_copy.h).
const errNotCopied Error = 9000

// errorNames are the errors of support/ebpf/errors.h that our programs can return, and our
// own.
var errorNames = map[Error]string{
	1:    "Python structures of an unknown shape",
	2:    "too many frames",
	2001: "Python process not analysed",
	2002: "Python frame unreadable",
	2003: "Python C frame unreadable",
	2004: "Python thread state unreadable",
	2005: "Python frames on a thread without Python state",
	2006: "Python thread's frame unreadable",
	2007: "Python thread state key unreadable",
	2008: "thread pointer unreadable",
	4000: "no unwind table for the code",
	4001: "unwind table missing",
	4002: "unwind table missing",
	4003: "unwind table damaged",
	4004: "address outside of the unwind table",
	4005: "code without unwind information",
	4007: "return address unreadable",
	4008: "return address in a register",
	4011: "kernel address on the stack",
	4012: "code outside of the analysed mappings",
	4013: "return address 0",
	4014: "return address below any code",
	4015: "unwind table damaged",
	4016: "32-bit process",
	4017: "32-bit process",
	4018: "code without an unwind table or a frame pointer",
	4020: "return address that is no code",

	errNotCopied: "a library was just loaded, and the stack is deeper than what was kept of it",
}
