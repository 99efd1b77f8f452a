package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// maxSelected is how many call sites a View has before Select makes another one. A View costs as
// much as some call sites, and its Samples make as many shapes at once.
const maxSelected = 1 << 12

// Select adds call sites of any layer, as they are at this moment, to v: see View.Samples. If v is
// nil or full, it makes a View and returns that. Outputs of a whole recording add those of
// each process that ends.
func (s *State) Select(v *View, sites []*ledger.Site, native stacks.Native) *View {
	if v == nil || len(v.sites) >= maxSelected {
		v = &View{want: Want{Native: native}, trace: s.trace, names: map[event.Process]string{}, whos: map[event.Process]*snapshot.Who{}}
	}
	v.categories = s.categories
	for _, one := range sites {
		x := site{Site: *one, live: one.InuseObjects, gpu: s.GPU(&one.SiteKey)}
		if one.Kind == event.KindTensor {
			x.fate = s.tensors.Fate(one.Proc, one.Stack)
		}
		x.addFrames(s.stacks)
		v.names[x.Proc], v.whos[x.Proc] = s.Name(x.Proc), s.processes.who(x.Proc)
		v.sites = append(v.sites, x)
	}
	return v
}

// Samples yields what each site of Select shows, in their order, under the names that
// its places have by then.
func (v *View) Samples(yield func(snapshot.Sample) bool) {
	b := newBuilder(v, v.shapes())
	for i := range v.sites {
		x := &v.sites[i]
		var sample snapshot.Sample
		if inPhysicalLayer(x.Kind) {
			sample, _ = b.physicalSample(x)
		} else {
			sample = b.sample(x)
		}
		if !yield(sample) {
			return
		}
	}
}
