package ledger

// A Counter is one cause of loss.
type Counter struct {
	Name  string // snake_case, stable
	Help  string // one clause for people
	Value uint64
}

type cause int

const (
	lossReplaced cause = iota
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
	numCauses
)

var causes = [numCauses]struct{ name, help string }{
	lossReplaced:     {"allocations_replaced", "allocations retired because a newer one came at their address before their free was seen"},
	lossStale:        {"frees_stale", "frees older than what has their address or handle, ignored"},
	lossNoAddress:    {"allocations_without_address", "allocations whose address could not be read: their end cannot be told"},
	lossUnattributed: {"allocations_unattributed", "allocations beyond the limit of live ones: in the totals, under no call stack"},
	lossUnknown:      {"allocations_unknown", "allocations beyond the limit of unattributed ones too: in no figure of memory in use"},
	lossEndedRows:    {"ended_rows_dropped", "single allocations of ended processes dropped to make room"},
	lossSites:        {"sites_full", "allocation calls without a call stack of their own because there are too many stacks"},
	lossFolded:       {"sites_folded", "call sites that held nothing, whose counters were put together for want of room"},
	lossProcesses:    {"processes_full", "events ignored because there are too many processes"},
	lossEnded:        {"processes_dropped", "ended processes dropped to make room"},
	lossForgotten:    {"events_forgotten", "events of ended processes that were dropped already"},
	lossContexts:     {"contexts_full", "uses of contexts that are not told apart because a process has too many"},
	lossOwner:        {"context_owner_unknown", "ends of contexts that may have ended allocations in a context that is not known: they are kept, and memory in use may be less than shown"},
	lossPools:        {"pools_full", "uses of memory pools that are not told apart because a process has too many"},
	lossGraphs:       {"graphs_full", "uses of graphs that are not told apart because a process has too many"},
	lossGraphKept:    {"graph_memory_kept", "allocations of destroyed graphs that may have run, kept until they are freed: graph memory may be less than shown"},
	lossCapture:      {"allocations_during_capture", "stream-ordered allocations on another stream than one under capture: taken for the graph's if the capturing thread made them, else for memory in use"},
	lossCaptures:     {"captures_unmatched", "stream captures whose beginning or end was not seen: what they allocated may be taken for memory in use, or the other way round"},
	lossMappings:     {"mappings_full", "mappings of physical memory not kept because there are too many"},
	lossPartial:      {"unmaps_partial", "mappings covered only in part by an unmap, kept"},
	lossHandles:      {"handles_unmatched", "uses of physical memory that was never seen created"},
	lossUnmaps:       {"unmaps_unmatched", "unmaps of ranges where no mapping was seen"},
	lossReleases:     {"releases_excess", "releases of physical memory that had no reference left"},
	lossReset:        {"resets_unknown", "resets of a primary context whose device is not known, ignored"},
	lossLate:         {"events_late", "events that an exec or an exit of their process overtook"},
	lossInvalid:      {"events_invalid", "events that no real call can cause, ignored"},
}

// Loss returns every cause of loss, zero ones included, in a fixed order.
func (l *Ledger) Loss() []Counter {
	out := make([]Counter, numCauses)
	for i, c := range causes {
		out[i] = Counter{Name: c.name, Help: c.help, Value: l.loss[i]}
	}
	return out
}
