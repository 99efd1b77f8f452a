package probes

import "github.com/gpumemtrace/gpumemtrace/internal/model/loss"

// kernelCauses are the counters of the kernel side's loss map, in the order of enum gm_loss.
var kernelCauses = []loss.Cause{
	loss.Of("events_ring_full", "events dropped because the ring buffer was full: live memory and totals may be wrong"),
	loss.Of("stacks_ring_full", "stacks that had to be sent again because the ring buffer was full"),
	loss.Of("calls_no_thread_state", "calls missed because the kernel had no memory for the thread's state"),
	loss.Of("calls_nested_too_deep", "calls missed because too many probed calls were pending on the thread"),
	loss.Of("calls_without_entry", "calls missed because their entry was not seen, or because the thread switched to a stack at a higher address inside them"),
	loss.Of("arguments_unreadable", "events with a value that could not be read from the process's memory"),
	loss.Of("stacks_failed", "events without a stack because the kernel could not walk it"),
	loss.Of("lists_truncated", "sparse mappings missed because one call had more than 16"),
	loss.Of("targets_full", "child processes not traced because the table of processes was full"),
	loss.Of("calls_nested", "calls not counted because the library made them inside another call that allocates or frees: the outer call counts for both"),
	loss.Of("calls_on_signal_stack", "calls missed because a signal handler made them on a stack at a higher address than the call that it interrupted"),
}

// causes are the counters of the Go side.
var causes loss.Causes

var (
	lossMalformed   = causes.Add("records_malformed", "records that could not be decoded")
	lossMappings    = causes.Add("mappings_lost", "new mappings that the kernel could not report: a library loaded then may be untraced")
	lossNotProbed   = causes.Add("libraries_not_probed", "libraries not probed because too many others had probes or waited for them, or because reading their file did not return")
	lossEvicted     = causes.Add("libraries_evicted", "libraries that lost their probes while a process mapped them, because too many libraries had probes: later calls of that process are missed, and the memory that it held stays in the figures until it ends")
	lossGone        = causes.Add("probes_gone", "functions whose probe a debugger or the program itself removed from a process: its later calls of them are missed, and sums are wrong")
	lossProbedLate  = causes.Add("libraries_probed_late", "libraries that got their probes only after a process had mapped them: calls in the milliseconds before that are missed")
	lossUnseen      = causes.Add("processes_unseen", "processes that ended before a library that they had mapped got its probes: none of their calls was seen")
	lossNotTraced   = causes.Add("processes_not_traced", "processes not traced because the table of processes was full")
	lossShed        = causes.Add("stacks_shed", "allocations without a call stack because the tracer was at its memory or processor limit: they are in every total")
	lossNotCompared = causes.Add("functions_not_compared", "function addresses that programs looked up and that could not be compared with the probes in time")
)

var runsMissed = loss.Of("runs_missed", "program runs that the kernel skipped")
