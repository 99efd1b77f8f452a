package state

import (
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// OtherOwners and OtherGPUs stand for the owners and the GPUs beyond a bound.
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
	// maxUses bounds the stacks whose use is remembered.
	maxUses = 1 << 18
)

// A Group is memory whose figures are added up. Owners and GPUs, of which a program could
// make many, are bounded: the first ones are distinguished, as long as the state exists.
type Group struct {
	GPU   string // label, "" for memory on none
	Kind  event.Kind
	Owner string // "" where it is not known, snapshot.NotNamed where a name is still to come
}

// Groups add up the counts of call sites, also of dropped ones. No counter falls: counts of
// a site wait until its stack has names, or until the site is dropped, and stay in the
// group that the site has then.
type groups struct {
	counts      map[Group]*ledger.Counts
	owners      map[string]bool // that are no row of the table
	gpus        map[string]bool // labels
	uses        map[useKey]use
	owner       stacks.Owners
	gpu         *gpus
	stacks      *stacks.Table
	outOfMemory map[string]int64 // failures, by GPU
	latest      []FailureSummary
	failures    *Failures
	folded      uint64 // memory that was added to other groups: lossFolded
}

var lossFolded = loss.Of("groups_folded", "times that memory was added to the figures of other owners or other GPUs because there were too many to keep apart")

func newGroups(gpus *gpus, stacks *stacks.Table) *groups {
	return &groups{counts: map[Group]*ledger.Counts{}, owners: map[string]bool{}, gpus: map[string]bool{},
		uses: map[useKey]use{}, gpu: gpus, stacks: stacks, outOfMemory: map[string]int64{}, failures: NewFailures(func(*Failure) {})}
}

// A useKey is a stack, and whether the memory is the kernel driver's.
type useKey struct {
	shapeKey
	driver bool
}

// A use is the owner and the purpose of memory that was allocated at a stack.
type use struct {
	first *record.Place // of the frames that it was made of
	owner string
	cause event.Kind // of memory of KindDriver, see physical.Cause
	early bool       // it depends on a name that is still to come
}

// use returns the use of a stack, as far as its frames have names.
func (g *groups) use(x *ledger.SiteKey, frames []*record.Place) use {
	switch {
	case len(frames) > 0:
	case x.Stack != 0: // they are still to come, or were lost
		return use{cause: event.KindDriver, owner: snapshot.NotNamed}
	default:
		return use{cause: event.KindDriver}
	}
	key := useKey{shapeKey{x.Stack, x.Kind == event.KindTensor}, x.Kind == event.KindDriver}
	if t, ok := g.uses[key]; ok && t.first == frames[0] {
		return t
	}
	t, final := use{first: frames[0], cause: event.KindDriver}, true
	for i, place := range frames {
		if i == 0 && key.begins && place.Address != 0 {
			continue
		}
		final = final && place.Final() // before its name is read
		t.early = !place.Named()
		if t.owner = g.owner.Owner(place.Location()); t.owner != "" {
			break
		}
	}
	if key.driver {
		if _, function := driverFrames(frames); function != "" {
			t.cause = physical.Cause(function)
		}
		for _, place := range frames {
			final = final && place.Final()
			t.early = t.early || !place.Named()
		}
	}
	if final && len(g.uses) < maxUses {
		g.uses[key] = t
	}
	return t
}

// group returns that of a call site on a GPU.
func (g *groups) group(x *ledger.SiteKey, gpu string, frames []*record.Place) Group {
	t := g.use(x, frames)
	kind := x.Kind
	if kind == event.KindDriver {
		kind = t.cause
	}
	return g.admit(Group{g.label(gpu), kind, ownerOf(kind, t.owner)})
}

// label returns a GPU's label, or OtherGPUs.
func (g *groups) label(label string) string {
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
	keyed.At(g.counts, k)
	return k
}

// failed counts a failure for want of memory.
func (g *groups) failed(f *Failure, name string, at time.Time) {
	g.outOfMemory[g.label(f.GPU)]++
	n := int64(1)
	if len(g.latest) > 0 {
		n += g.latest[len(g.latest)-1].Number
	}
	g.latest = append(g.latest, FailureSummary{n, int(f.Proc.PID), name, f.GPU, f.Size(), at})
	if len(g.latest) > maxLatest {
		g.latest = slices.Clone(g.latest[1:])
	}
}

// count adds the new counts of a site to its group.
func (g *groups) count(x *ledger.Site) {
	if x.HasUnfetchedCounts() {
		c := x.FetchCounts()
		g.counts[g.group(&x.SiteKey, g.gpu.GPU(&x.SiteKey), g.stacks.Frames(x.Stack))].Add(&c)
	}
}

// counted returns all counts since the trace began, by group. Objects of tensors are whole
// ones.
func (s *State) counted() map[Group]ledger.Counts {
	for _, layer := range s.layers() {
		for x := range layer.Sites {
			if x.HasUnfetchedCounts() && !s.groups.use(&x.SiteKey, s.stacks.Frames(x.Stack)).early {
				s.groups.count(x)
			}
		}
	}
	out := make(map[Group]ledger.Counts, len(s.groups.counts))
	for k, c := range s.groups.counts {
		out[k] = *c
	}
	return out
}
