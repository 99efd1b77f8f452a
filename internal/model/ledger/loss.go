package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/loss"

var causes loss.Causes

var (
	lossReplaced     = causes.Add("allocations_replaced", "allocations retired because a newer one came at their address before their free was seen")
	lossStale        = causes.Add("frees_stale", "frees older than what has their address or handle, ignored")
	lossNoAddress    = causes.Add("allocations_without_address", "allocations whose address could not be read: their end cannot be told")
	lossUnattributed = causes.Add("allocations_unattributed", "allocations beyond the limit of live ones: in the totals, under no call stack")
	lossUnknown      = causes.Add("allocations_unknown", "allocations beyond the limit of unattributed ones too: in no figure of memory in use")
	lossEndedRows    = causes.Add("ended_rows_dropped", "single allocations of ended processes dropped to make room")
	lossSites        = causes.Add("sites_full", "allocation calls without a call stack of their own because there are too many stacks")
	lossFolded       = causes.Add("sites_folded", "call sites whose counters were put together for want of room: those that held nothing first")
	lossProcesses    = causes.Add("processes_full", "events ignored because there are too many processes")
	lossEnded        = causes.Add("processes_dropped", "ended processes dropped to make room")
	lossForgotten    = causes.Add("events_forgotten", "events of ended processes that were dropped already")
	lossDevices      = causes.Add("devices_full", "call sites whose device is not told apart in sums because a process names too many")
	lossContexts     = causes.Add("contexts_full", "uses of contexts that are not told apart because a process has too many")
	lossOwner        = causes.Add("context_owner_unknown", "ends of contexts that may have ended allocations in a context that is not known: they are kept, and memory in use may be less than shown")
	lossPools        = causes.Add("pools_full", "uses of memory pools that are not told apart because a process has too many")
	lossGraphs       = causes.Add("graphs_full", "uses of graphs that are not told apart because a process has too many, or moves them too often")
	lossGraphKept    = causes.Add("graph_memory_kept", "allocations of destroyed graphs that may have run, kept until they are freed: graph memory may be less than shown")
	lossCapture      = causes.Add("allocations_during_capture", "stream-ordered allocations on another stream than one under capture: taken for the graph's if the capturing thread made them, else for memory in use")
	lossCaptures     = causes.Add("captures_unmatched", "stream captures whose beginning or end was not seen: what they allocated may be taken for memory in use, or the other way round")
	lossMappings     = causes.Add("mappings_full", "mappings of physical memory not kept because there are too many")
	lossPartial      = causes.Add("unmaps_partial", "mappings covered only in part by an unmap, kept")
	lossHandles      = causes.Add("handles_unmatched", "uses of physical memory that was never seen created")
	lossUnmaps       = causes.Add("unmaps_unmatched", "unmaps of ranges where no mapping was seen")
	lossReleases     = causes.Add("releases_excess", "releases of physical memory that had no reference left")
	lossReset        = causes.Add("resets_unknown", "resets of a primary context whose device is not known, ignored")
	lossLate         = causes.Add("events_late", "events that an exec or an exit of their process overtook")
	lossInvalid      = causes.Add("events_invalid", "events that no real call can cause, ignored")
)

// Loss returns every cause of loss, zero ones included, in a fixed order.
func (l *Ledger) Loss() []loss.Counter { return l.loss.Counters() }
