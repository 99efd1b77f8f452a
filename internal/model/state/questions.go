package state

import (
	"iter"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// WaitsForTime reports whether time alone changes the state: a reading, a window of tensors, or
// the end of an incident wait for a moment.
func (s *State) WaitsForTime() bool {
	return s.pending != nil || s.window != nil || len(s.incidents.open) > 0
}

// SawTensors reports whether there ever was a tensor.
func (s *State) SawTensors() bool { return s.tensors.Seen() || s.windows.Seen() }

// Subjects are the processes whose figures a reading should have.
func (s *State) Subjects() (out []record.Subject) {
	for _, id := range s.processes.current {
		subject := record.Subject{Process: id}
		add := func(device int32) {
			if device != event.NoDevice && !slices.Contains(subject.Ordinals, device) {
				subject.Ordinals = append(subject.Ordinals, device)
			}
		}
		for h := range s.ledger.UseByDevice(id) {
			add(h.Device)
		}
		for device := range s.tensors.DevicesOf(id) {
			add(device)
		}
		out = append(out, subject)
	}
	return out
}

// MayHold reports whether a process may hold memory of a GPU: it does, or nobody asked the driver yet.
func (s *State) MayHold(id event.Process) bool {
	return s.read == nil || len(s.accounts.Labels(id)) > 0 || s.Held(id).Total > 0
}

// Unnamed returns the places whose names were not looked for, and those
// for which looking again may be of use.
func (s *State) Unnamed() (first, again []*record.Place) { return s.stacks.Unnamed() }

// WantsSweep reports whether it is time for a record.Sweep.
func (s *State) WantsSweep() bool { return s.stacks.WantsSweep() }

// MarkedStacks returns the stacks that the source must report again when an event names them,
// and their living processes, by PID.
func (s *State) MarkedStacks() (ids []uint64, pids map[uint32]bool) {
	ids, pids = s.stacks.Marked()
	for pid := range pids {
		if _, lives := s.processes.current[pid]; !lives {
			delete(pids, pid)
		}
	}
	return ids, pids
}

// A SiteUsage is the memory in use of one call site.
type SiteUsage struct {
	Site           ledger.SiteKey
	Bytes, Objects int64
}

// InUse yields the memory in use of each call site of a living process, as the samples of
// a Snapshot show it: memory that tensors were handed out of counts at their sites. It
// costs no more than a visit of each.
func (s *State) InUse(yield func(SiteUsage) bool) {
	handed := map[*ledger.Site]int64{}
	for _, pool := range s.tensors.Pools {
		handed[pool.Site] += pool.Inuse
	}
	for _, sites := range []iter.Seq[*ledger.Site]{s.ledger.Sites, s.tensors.Rows.Sites} {
		for x := range sites {
			bytes := x.InuseBytes - handed[x]
			if bytes > 0 && s.IsAlive(x.Proc) && !yield(SiteUsage{x.SiteKey, bytes, x.InuseObjects}) {
				return
			}
		}
	}
}

// ShareOwner returns the process whose object e, an OpObjectShare or OpObjectExport, names, if it is known.
func (s *State) ShareOwner(e *event.Event) (event.Process, bool) { return s.physical.Owner(e) }

// Events returns how many events the state has seen.
func (s *State) Events() uint64 { return s.events }

// Target describes what is traced, such as "pid 4711 (python3)".
func (s *State) Target() string { return s.trace.Target }

// A Size counts the contents of a state.
type Size struct{ Stacks, Processes, Sites int }

// Size counts the contents of the state.
func (s *State) Size() Size {
	out := Size{Stacks: s.stacks.Len(), Processes: len(s.processes.known)}
	for range s.ledger.Sites {
		out.Sites++
	}
	return out
}

// CachedBytes returns the bytes of a call site's memory that are in no tensor. It returns
// false if no tensor was handed out of that memory, or if not every tensor has events.
func (s *State) CachedBytes(site *ledger.Site) (int64, bool) {
	pool := s.tensors.Pool(site)
	if pool == nil {
		return 0, false
	}
	return site.InuseBytes - pool.Inuse, true
}

// RowsOf yields those of Rows that are of one process.
func (s *State) RowsOf(id event.Process) iter.Seq[ledger.Allocation] {
	return func(yield func(ledger.Allocation) bool) {
		for _, rows := range []*ledger.Ledger{s.ledger, s.tensors.Rows} {
			for a := range rows.LiveOf(id) {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// Rows yields the live allocations of the driver layer and of the tensor layer, in no
// order. Those of an ended process were live when it ended.
func (s *State) Rows(yield func(ledger.Allocation) bool) {
	for _, rows := range []*ledger.Ledger{s.ledger, s.tensors.Rows} {
		for a := range rows.Live {
			if !yield(a) {
				return
			}
		}
	}
}
