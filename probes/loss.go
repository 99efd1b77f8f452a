package probes

import (
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// kernelCauses names the entries of the kernel side's loss map, in the order
// of enum gm_loss.
var kernelCauses = []loss.Cause{
	loss.Of("events_ring_full", "events dropped because the ring buffer was full: live memory and totals may be wrong"),
	loss.Of("stacks_ring_full", "stacks that had to be sent again because the ring buffer was full"),
	loss.Of("calls_no_thread_state", "calls missed because the kernel had no memory for the thread's state"),
	loss.Of("calls_nested_too_deep", "calls missed because too many probed calls were pending on the thread"),
	loss.Of("calls_without_entry", "calls missed because it was not seen where they began, or a call of the same function inside them took their place"),
	loss.Of("arguments_unreadable", "events with a value that could not be read from the process's memory"),
	loss.Of("stacks_failed", "events without a stack because the kernel could not walk it"),
	loss.Of("lists_truncated", "sparse mappings missed because one call had more than 16"),
	loss.Of("targets_full", "child processes not traced because the table of processes was full"),
	loss.Of("calls_nested", "calls not counted because they came from inside another that allocates or frees, which counts for both"),
	loss.Of("tensor_allocators_full", "tensors made or freed that are in no figure because the kernel's table of allocators was full"),
	loss.Of("tensor_samples_full", "sampled tensors that were left out because the kernel's table of those that are live was full: estimates are too low"),
	loss.Of("calls_on_signal_stack", "calls missed because a signal handler made them on a stack above that of a call that it interrupted"),
}

// causes is what the Go side can lose.
var causes loss.Causes

var (
	lossMalformed   = causes.Add("records_malformed", "records that could not be decoded")
	lossMappings    = causes.Add("mappings_lost", "new mappings that the kernel could not report: a library loaded then may be untraced")
	lossNotProbed   = causes.Add("libraries_not_probed", "libraries left unprobed because too many were probed already, or waited to be, or because their file did not answer")
	lossEvicted     = causes.Add("libraries_evicted", "libraries that lost their probes while a process mapped them, because too many were probed: the rest of what that process does is missed, and what it held then stays in the figures until it ends")
	lossProbedLate  = causes.Add("libraries_probed_late", "libraries that a process mapped before they had probes: its calls in the milliseconds between are missed")
	lossUnseen      = causes.Add("processes_unseen", "processes that ended before the library that they mapped could be probed: nothing of them is seen")
	lossNotTraced   = causes.Add("processes_not_traced", "processes not traced because the table of processes was full")
	lossShed        = causes.Add("stacks_shed", "allocations without a call stack because the tracer was at a limit that it was given: they are in every total")
	lossNotCompared = causes.Add("functions_not_compared", "addresses that programs asked for which were not compared with the probes, for want of time")
)

var runsMissed = loss.Of("runs_missed", "program runs that the kernel skipped")

// Loss returns every cause of loss.
func (t *Tracer) Loss() []loss.Counter {
	var out []loss.Counter
	for i, c := range kernelCauses {
		out = append(out, c.Counter(t.kernelCount(i)))
	}
	var missed uint64 // because a program was running on the CPU already
	for _, p := range t.running() {
		if s, err := p.Stats(); err == nil {
			missed += s.RecursionMisses
		}
	}
	return append(append(out, t.loss.Counters()...), runsMissed.Counter(missed))
}

// running returns all programs that run for the trace, that of the taker of stacks too.
func (t *Tracer) running() []*ebpf.Program {
	all := slices.Collect(maps.Values(t.coll.Programs))
	if !slices.Contains(all, t.progs.exit) {
		all = append(all, t.progs.exit)
	}
	return all
}

// kernelCount reads the i-th of the kernel side's counters. One that cannot be
// read is 0: the map cannot vanish while it is open.
func (t *Tracer) kernelCount(i int) (n uint64) {
	_ = t.coll.Maps["loss"].Lookup(uint32(i), &n)
	return n
}
