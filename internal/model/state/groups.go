package state

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// OtherOwners stands for owners, and OtherGPUs for GPUs, that are too many to be told apart.
const (
	OtherOwners = "other"
	OtherGPUs   = "other"
)

const (
	// maxOwners bounds the owners that are no row of the table of package stacks, maxGPUs
	// the labels of GPUs, maxGroups all groups but those of OtherOwners.
	maxOwners = 64
	maxGPUs   = 256
	maxGroups = 4096
	// maxLatest bounds the latest failures for want of memory.
	maxLatest = 64
	// maxTold bounds the stacks of which it is kept what they tell.
	maxTold = 1 << 18
)

// A Group is what memory has in common whose figures are added up. What a program could
// make many of is bounded: the first come are told apart, for as long as the state is.
type Group struct {
	GPU   string // label, "" for memory on none
	Kind  event.Kind
	Owner string // "" where it is not known, or not yet
}

// groups adds up what call sites count, those that are gone too. No counter falls: what a
// site counts waits until the names of its stack were looked for, or until it goes, and
// stays in the group that it has then.
type groups struct {
	counts      map[Group]*ledger.Counts
	owners      map[string]bool // that are no row of the table
	gpus        map[string]bool
	told        map[meant]meaning
	of          stacks.Owners
	outOfMemory map[string]int64 // failures, by GPU
	latest      []LatestFailure
	failures    *Failures
	folded      uint64 // see foldedOwners
}

var foldedOwners = loss.Of("groups_folded", "times that memory was added up as another owner's, or on another GPU, because too many were to be told apart")

func newGroups() *groups {
	return &groups{counts: map[Group]*ledger.Counts{}, owners: map[string]bool{}, gpus: map[string]bool{},
		told: map[meant]meaning{}, outOfMemory: map[string]int64{}, failures: NewFailures(func(*Failure) {})}
}

// A meant is a stack of memory of which it tells what it is for, or does not.
type meant struct {
	shaped
	driver bool
}

// A meaning is what a stack tells of memory that was asked for there.
type meaning struct {
	first *record.Place // of the frames that it was made of
	owner string
	cause event.Kind // of memory of KindDriver, see physical.Cause
	early bool       // a name that it depends on was not looked for yet
	waits bool       // another look may tell something else
}

// tells returns what a stack tells, as far as its frames have names.
func (g *groups) tells(x *ledger.SiteKey, frames []*record.Place) meaning {
	if len(frames) == 0 {
		return meaning{cause: event.KindDriver, waits: x.Stack != 0}
	}
	key := meant{shaped{x.Stack, x.Kind == event.KindTensor}, x.Kind == event.KindDriver}
	if t, ok := g.told[key]; ok && t.first == frames[0] {
		return t
	}
	t, final := meaning{first: frames[0], cause: event.KindDriver}, true
	for i, place := range frames {
		if i == 0 && key.begins && place.Address != 0 {
			continue
		}
		final = final && place.Final() // before its name is read
		if !place.Named() {
			t.early = true
			break
		}
		if t.owner = g.of.Of(place.Location()); t.owner != "" {
			break
		}
	}
	if key.driver {
		if _, function := below(frames); function != "" {
			t.cause = physical.Cause(function)
		}
		for _, place := range frames {
			final = final && place.Final()
			t.early = t.early || !place.Named()
		}
	}
	if final && len(g.told) < maxTold {
		g.told[key] = t
	}
	t.waits = !final
	return t
}

// group returns that of a call site on a GPU, and whether it may come to be another.
func (g *groups) group(x *ledger.SiteKey, gpu string, frames []*record.Place) (k Group, waits bool) {
	t := g.tells(x, frames)
	kind := x.Kind
	if kind == event.KindDriver {
		kind = t.cause
	}
	return g.admit(Group{g.gpu(gpu), kind, t.owner}), t.waits
}

// gpu returns a label, or OtherGPUs.
func (g *groups) gpu(label string) string {
	if !g.gpus[label] {
		if len(g.gpus) >= maxGPUs {
			g.folded++
			return OtherGPUs
		}
		g.gpus[label] = true
	}
	return label
}

// admit returns k, or the group that it is folded into.
func (g *groups) admit(k Group) Group {
	if g.counts[k] != nil {
		return k
	}
	if !stacks.Listed(k.Owner) && !g.owners[k.Owner] {
		if len(g.owners) < maxOwners {
			g.owners[k.Owner] = true
		} else {
			g.folded++
			k.Owner = OtherOwners
		}
	}
	if len(g.counts) >= maxGroups && g.counts[k] == nil && k.Owner != OtherOwners {
		g.folded++
		k.Owner = OtherOwners
	}
	if g.counts[k] == nil {
		g.counts[k] = &ledger.Counts{}
	}
	return k
}

// failed counts a failure for want of memory.
func (g *groups) failed(f *Failure, name string, at time.Time) {
	g.outOfMemory[g.gpu(f.GPU)]++
	n := int64(1)
	if len(g.latest) > 0 {
		n += g.latest[len(g.latest)-1].Number
	}
	g.latest = append(g.latest, LatestFailure{n, int(f.Proc.PID), name, f.GPU, f.Size(), at})
	if len(g.latest) > maxLatest {
		g.latest = slices.Clone(g.latest[1:])
	}
}

// count adds to groups what a site counted since it was asked last.
func (s *State) count(x *ledger.Site, label func(*ledger.SiteKey) string) {
	if x.HasFresh() {
		c := x.Fresh()
		k, _ := s.groups.group(&x.SiteKey, label(&x.SiteKey), s.stacks.Frames(x.Stack))
		s.groups.counts[k].Add(&c)
	}
}

// counted returns what was ever counted, by group. Objects of tensors are whole ones. Of
// processes but some, nil for all, nothing has been counted since it was asked last.
func (s *State) counted(some map[event.Process]bool) map[Group]ledger.Counts {
	for _, layer := range []struct {
		rows  *ledger.Ledger
		label func(*ledger.SiteKey) string
	}{{s.ledger, s.label}, {s.tensors.Rows, s.label}, {s.physical.Rows, s.labelOf}} {
		for x := range sitesOf(layer.rows, some) {
			if x.HasFresh() && !s.groups.tells(&x.SiteKey, s.stacks.Frames(x.Stack)).early {
				s.count(x, layer.label)
			}
		}
	}
	out := make(map[Group]ledger.Counts, len(s.groups.counts))
	for k, c := range s.groups.counts {
		x := *c
		if k.Kind == event.KindTensor {
			x.AllocObjects, x.FreedObjects = s.tensors.Objects(x.AllocObjects), s.tensors.Objects(x.FreedObjects)
		}
		out[k] = x
	}
	return out
}
