package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/loss"

const (
	lossReplaced = iota
	lossStale
	lossNoAddress
	lossUnattributed
	lossUnknown
	lossEndedRows
	lossSites
	lossFolded
	lossProcesses
	lossEnded
	lossForgotten
	lossDevices
	lossContexts
	lossOwner
	lossPools
	lossGraphs
	lossGraphKept
	lossCapture
	lossCaptures
	lossMappings
	lossPartial
	lossHandles
	lossUnmaps
	lossReleases
	lossReset
	lossLate
	lossInvalid
)

var causes = []loss.Cause{
	lossReplaced:     {Name: "allocations_replaced", Help: "allocations retired because a newer one came at their address before their free was seen"},
	lossStale:        {Name: "frees_stale", Help: "frees older than what has their address or handle, ignored"},
	lossNoAddress:    {Name: "allocations_without_address", Help: "allocations whose address could not be read: their end cannot be told"},
	lossUnattributed: {Name: "allocations_unattributed", Help: "allocations beyond the limit of live ones: in the totals, under no call stack"},
	lossUnknown:      {Name: "allocations_unknown", Help: "allocations beyond the limit of unattributed ones too: in no figure of memory in use"},
	lossEndedRows:    {Name: "ended_rows_dropped", Help: "single allocations of ended processes dropped to make room"},
	lossSites:        {Name: "sites_full", Help: "allocation calls without a call stack of their own because there are too many stacks"},
	lossFolded:       {Name: "sites_folded", Help: "call sites that held nothing, whose counters were put together for want of room"},
	lossProcesses:    {Name: "processes_full", Help: "events ignored because there are too many processes"},
	lossEnded:        {Name: "processes_dropped", Help: "ended processes dropped to make room"},
	lossForgotten:    {Name: "events_forgotten", Help: "events of ended processes that were dropped already"},
	lossDevices:      {Name: "devices_full", Help: "call sites whose device is not told apart in sums because a process names too many"},
	lossContexts:     {Name: "contexts_full", Help: "uses of contexts that are not told apart because a process has too many"},
	lossOwner:        {Name: "context_owner_unknown", Help: "ends of contexts that may have ended allocations in a context that is not known: they are kept, and memory in use may be less than shown"},
	lossPools:        {Name: "pools_full", Help: "uses of memory pools that are not told apart because a process has too many"},
	lossGraphs:       {Name: "graphs_full", Help: "uses of graphs that are not told apart because a process has too many"},
	lossGraphKept:    {Name: "graph_memory_kept", Help: "allocations of destroyed graphs that may have run, kept until they are freed: graph memory may be less than shown"},
	lossCapture:      {Name: "allocations_during_capture", Help: "stream-ordered allocations on another stream than one under capture: taken for the graph's if the capturing thread made them, else for memory in use"},
	lossCaptures:     {Name: "captures_unmatched", Help: "stream captures whose beginning or end was not seen: what they allocated may be taken for memory in use, or the other way round"},
	lossMappings:     {Name: "mappings_full", Help: "mappings of physical memory not kept because there are too many"},
	lossPartial:      {Name: "unmaps_partial", Help: "mappings covered only in part by an unmap, kept"},
	lossHandles:      {Name: "handles_unmatched", Help: "uses of physical memory that was never seen created"},
	lossUnmaps:       {Name: "unmaps_unmatched", Help: "unmaps of ranges where no mapping was seen"},
	lossReleases:     {Name: "releases_excess", Help: "releases of physical memory that had no reference left"},
	lossReset:        {Name: "resets_unknown", Help: "resets of a primary context whose device is not known, ignored"},
	lossLate:         {Name: "events_late", Help: "events that an exec or an exit of their process overtook"},
	lossInvalid:      {Name: "events_invalid", Help: "events that no real call can cause, ignored"},
}

// Loss returns every cause of loss, zero ones included, in a fixed order.
func (l *Ledger) Loss() []loss.Counter { return l.loss.Counters() }
