package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// ViewOf returns a View of call sites of any layer, as they are at this moment: see
// View.Selected. Outputs of a whole recording have one for each process that ended.
func (s *State) ViewOf(sites []*ledger.Site, native stacks.Native) *View {
	v := &View{want: Want{Native: native}, trace: s.trace, categories: s.categories, names: map[event.Process]string{}, whos: map[event.Process]*snapshot.Who{}, sites: make([]site, 0, len(sites))}
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

// Samples returns what each site of Select shows, in their order, under the names that
// its places have by then.
func (v *View) Samples() []snapshot.Sample {
	b := newBuilder(v, v.shapes())
	out := make([]snapshot.Sample, 0, len(v.sites))
	for i := range v.sites {
		x := &v.sites[i]
		if inPhysicalLayer(x.Kind) {
			s, _ := b.physicalSample(x)
			out = append(out, s)
		} else {
			out = append(out, b.sample(x))
		}
	}
	return out
}
