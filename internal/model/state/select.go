package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// A Selection is what a View has of some call sites. Outputs of a whole recording keep one
// for each process that ended.
type Selection struct {
	native stacks.Native
	trace  record.Trace
	names  map[event.Process]string
	sites  []site
}

// Select returns call sites of any layer, as they are at this moment.
func (s *State) Select(sites []*ledger.Site, native stacks.Native) *Selection {
	v := &View{names: map[event.Process]string{}, sites: make([]site, 0, len(sites))}
	for _, one := range sites {
		x := site{Site: *one, held: one.InuseObjects, gpu: s.GPU(&one.SiteKey)}
		if one.Kind == event.KindTensor {
			x.fate = s.tensors.Fate(one.Proc, one.Stack)
		}
		s.told(&x)
		s.name(v, x.Proc)
		v.sites = append(v.sites, x)
	}
	return &Selection{native, s.trace, v.names, v.sites}
}

// Selected returns what each site of Select shows, in their order, under the names that
// its places have by then.
func (x *Selection) Selected() []snapshot.Sample {
	v := &View{want: Want{Native: x.native}, trace: x.trace, names: x.names, sites: x.sites}
	b := newBuilder(v, v.shapes())
	out := make([]snapshot.Sample, 0, len(v.sites))
	for i := range v.sites {
		x := &v.sites[i]
		if takenByDriver(x.Kind) {
			s, _ := b.taken(x)
			out = append(out, s)
		} else {
			out = append(out, b.sample(x))
		}
	}
	return out
}

// takenByDriver tells whether memory of a kind is of the physical layer.
func takenByDriver(k event.Kind) bool {
	return k.Class() == event.ClassDriver || k == event.KindSystem
}

// GPU returns the label of the GPU that a call site of any layer is on, as far as it is
// known at this moment: see snapshot.Labels.
func (s *State) GPU(site *ledger.SiteKey) string {
	if takenByDriver(site.Kind) {
		return s.labelOf(site)
	}
	return s.label(site)
}

// Cached returns the bytes of a call site's memory that are in no tensor, where tensors
// were handed out of it and every one is told: 0 elsewhere.
func (s *State) Cached(site *ledger.Site) int64 {
	if pool := s.tensors.Pool(site); pool != nil {
		return site.InuseBytes - pool.Inuse
	}
	return 0
}

// Pools tells whether tensors were handed out of a call site's memory, and every one is
// told.
func (s *State) Pools(site *ledger.Site) bool { return s.tensors.Pool(site) != nil }

// Name returns the name of a process, "" if it is not known.
func (s *State) Name(id event.Process) string { return s.procs.name(id) }

// Telling returns which tensors are told: see record.Tensors.
func (s *State) Telling() (sample, least uint64) { return s.tensors.Telling() }

// Lives tells whether a process is traced and has not ended.
func (s *State) Lives(id event.Process) bool { return s.procs.lives(id) }

// Rows yields the live allocations of the driver layer and of the tensor layer, in no
// order. Those of an ended process are what it held when it ended.
func (s *State) Rows(yield func(ledger.Allocation) bool) {
	for _, rows := range []*ledger.Ledger{s.ledger, s.tensors.Rows} {
		for a := range rows.Live {
			if !yield(a) {
				return
			}
		}
	}
}

// Sees tells whether what a process holds is what it was seen to take from the kernel
// driver; else it is its allocations and Beyond.
func (s *State) Sees(id event.Process) bool { return s.sees(id) }

// Late tells whether a process was attached to when it may have held memory already.
func (s *State) Late(id event.Process) bool { return s.late(id) }

// Beyond yields what a process holds, in bytes, on each GPU beyond what was seen, as far
// as NVML's figures of this moment tell: see account.Figure. Of one that was seen from
// its start there is nothing.
func (s *State) Beyond(id event.Process, yield func(gpu string, bytes int64)) {
	if s.sees(id) && !s.late(id) {
		return
	}
	for _, gpu := range s.accounts.Labels(id) {
		if f := s.accounts.Figure(id, gpu); f.Known {
			yield(gpu, f.Before)
		}
	}
}
