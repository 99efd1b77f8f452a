package probes

// A Counter is one way to lose something, or one thing worth knowing.
type Counter struct {
	Name, Help string
	Value      uint64
}

// kernelCounters names the entries of the kernel side's loss map, in the order
// of enum gm_loss.
var kernelCounters = []Counter{
	{Name: "events_ring_full", Help: "events dropped because the ring buffer was full: live memory and totals may be wrong"},
	{Name: "stacks_ring_full", Help: "stacks that had to be sent again because the ring buffer was full"},
	{Name: "calls_no_thread_state", Help: "calls missed because the kernel had no memory for the thread's state"},
	{Name: "calls_nested_too_deep", Help: "calls missed because too many probed calls were pending on the thread"},
	{Name: "calls_without_entry", Help: "calls missed because they were under way when the probes went on"},
	{Name: "arguments_unreadable", Help: "events with a value that could not be read from the process's memory"},
	{Name: "stacks_failed", Help: "events without a stack because the kernel could not walk it"},
	{Name: "lists_truncated", Help: "sparse mappings missed because one call had more than 16"},
	{Name: "targets_full", Help: "child processes not traced because the table of processes was full"},
	{Name: "calls_nested", Help: "calls not counted because they came from inside another that allocates or frees, which counts for both"},
}
