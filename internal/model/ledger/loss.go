package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/loss"

var causes loss.Causes

var (
	lossReplaced     = causes.Add("allocations_replaced", "allocations counted as freed because a newer allocation got their address before their free was seen")
	lossStale        = causes.Add("frees_stale", "frees ignored because they are older than the allocation at their address or handle")
	lossNoAddress    = causes.Add("allocations_without_address", "allocations whose address could not be read: their free cannot be recognized")
	lossUnattributed = causes.Add("allocations_unattributed", "allocations beyond the limit of live allocations: they are in the totals, but under no call stack")
	lossUnknown      = causes.Add("allocations_unknown", "allocations beyond the limit of unattributed allocations as well: they are in no figure of memory in use")
	lossEndedRows    = causes.Add("ended_rows_dropped", "single allocations of ended processes dropped to make room")
	lossSites        = causes.Add("sites_full", "allocation calls without a call stack of their own because there are too many stacks")
	lossFolded       = causes.Add("sites_folded", "call sites whose counters were merged to save room, beginning with those that held nothing")
	lossProcesses    = causes.Add("processes_full", "events ignored because there are too many processes")
	lossEnded        = causes.Add("processes_dropped", "ended processes dropped to make room")
	lossForgotten    = causes.Add("events_forgotten", "events of ended processes that were dropped already")
	lossDevices      = causes.Add("devices_full", "call sites whose device is not shown separately in sums because their process uses too many devices")
	lossContexts     = causes.Add("contexts_full", "uses of contexts that are not kept apart because a process has too many")
	lossOwner        = causes.Add("context_owner_unknown", "destroyed contexts that may have contained allocations whose context is not known: these allocations are kept, so memory in use may be less than shown")
	lossPools        = causes.Add("pools_full", "uses of memory pools that are not told apart because a process has too many")
	lossGraphs       = causes.Add("graphs_full", "uses of graphs that are not kept apart because a process has too many, or moves them too often")
	lossGraphKept    = causes.Add("graph_memory_kept", "allocations of destroyed graphs that may have run, kept until they are freed: graph memory may be less than shown")
	lossCapture      = causes.Add("allocations_during_capture", "stream-ordered allocations that were made during a capture, but on another stream: they count as the graph's if the capturing thread made them, and otherwise as memory in use")
	lossCaptures     = causes.Add("captures_unmatched", "stream captures whose beginning or end was not seen: memory of the graph may count as memory in use, or memory in use as the graph's")
	lossMappings     = causes.Add("mappings_full", "mappings of physical memory not kept because there are too many")
	lossPartial      = causes.Add("unmaps_partial", "mappings that are kept because an unmap covered only a part of them")
	lossHandles      = causes.Add("handles_unmatched", "uses of physical memory that was never seen created")
	lossUnmaps       = causes.Add("unmaps_unmatched", "unmaps of ranges where no mapping was seen")
	lossReleases     = causes.Add("releases_excess", "releases of physical memory that had no reference left")
	lossReset        = causes.Add("resets_unknown", "resets of a primary context that were ignored because its device is not known")
	lossLate         = causes.Add("events_late", "events that came after the exec or the end of their process")
	lossInvalid      = causes.Add("events_invalid", "events that were ignored because no real call can cause them")
)

// Loss returns every cause of loss, zero ones included, in a fixed order.
func (l *Ledger) Loss() []loss.Counter { return l.loss.Counters() }

// LossOf returns the counters of a layer, and behind them those of l, which has the rows of
// that layer, with a prefix.
func (l *Ledger) LossOf(layer *loss.Set, prefix string) []loss.Counter {
	out := layer.Counters()
	for _, c := range l.Loss() {
		c.Name = prefix + c.Name
		out = append(out, c)
	}
	return out
}
