package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/account"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Totals are sums over a State, without call stacks. All are of one moment, except NVML's
// figures, which are those of the last reading.
type Totals struct {
	Meta   snapshot.Meta
	Groups []GroupFigures // in order
	// Processes are those that are alive or that a snapshot shows. Uses are their memory on
	// each GPU, by process.
	Processes []snapshot.Process
	Uses      []Use
	// Windowed are the tensors that were seen in windows, without rows.
	Windowed []snapshot.Windowed
	Accounts []snapshot.Account
	GPUs     []GPUFigures
	// OutOfMemory counts out-of-memory failures, by the label of the GPU. Calls of a thread
	// that fail shortly after each other count as one. Failures that the thread recovered
	// from count too. Latest has the latest failures, at most maxLatest.
	OutOfMemory map[string]int64
	Latest      []FailureSummary
	Loss        []loss.Counter
}

// GroupFigures are the sums of one Group. Live and peak figures are those of the samples of
// a snapshot. Counts are all allocations and frees since the trace began, including those of
// processes that are gone. KindCached has no Counts, because it is a part of memory of another
// kind. A tensor is counted twice: under KindTensor, and in the memory that it lies in.
type GroupFigures struct {
	Group
	LiveObjects, LiveBytes int64
	PeakBytes              int64 // held at the peak of each process, at its own time
	ledger.Counts
}

// A Use is the memory of class device that a process has on a GPU, in bytes.
type Use struct {
	PID        int
	GPU        string // label
	Live, Peak int64
	Objects    int64
}

// GPUFigures are NVML's figures of one GPU, or of an instance of one, and those of the traced
// processes on it.
type GPUFigures struct {
	snapshot.GPUMemory
	Held  int64 // the totals of the accounts on it
	Known bool  // all of Held is known
	// Residual is the part of Used that no traced process held when Used was read. Other
	// processes or the driver itself hold it. It is valid only if ResidualKnown is set.
	Residual      int64
	ResidualKnown bool
}

// A FailureSummary is a failure for want of memory.
type FailureSummary struct {
	Number    int64 // counted from 1 on, over all GPUs
	PID       int
	Process   string // comm
	GPU       string // label
	Requested uint64 // bytes, by the first call
	Time      time.Time
}

// A totalsData is the part of a View that Totals needs. It is filled if Totals are wanted. It
// has all counts, the labels of the GPUs of groups, out-of-memory failures by label, and the
// memory of each GPU that is in no account.
type totalsData struct {
	counted     map[Group]ledger.Counts
	labels      map[string]bool
	outOfMemory map[string]int64
	latest      []FailureSummary
	rests       map[string]account.Rest
}

// addTotals copies the totalsData, and adds the groups of call sites.
func (c *collector) addTotals() {
	g, to := c.s.groups, &c.v.totals
	to.counted = c.s.counted()
	for _, sites := range c.v.all() {
		for i := range sites {
			x := &sites[i]
			x.group = g.group(&x.SiteKey, x.gpu, x.frames)
		}
	}
	to.labels, to.outOfMemory, to.latest = maps.Clone(g.gpus), maps.Clone(g.outOfMemory), slices.Clone(g.latest)
}

// Totals adds up what v shows. v must have been made with Want.Totals. Totals name no stack.
func (v *View) Totals() *Totals {
	out := &Totals{Meta: v.snapshot.Meta, Processes: v.snapshot.Processes, OutOfMemory: v.totals.outOfMemory, Latest: v.totals.latest, Loss: v.snapshot.Loss}
	all := groupSums{}
	out.Accounts = v.sum(all)
	for k, c := range v.totals.counted {
		if k.Kind.Class() != event.ClassDriver || hasOwnSample(k.Kind) {
			all.group(k).Counts = c
		}
	}
	for _, k := range sorting.Keys(all, compareGroups) {
		out.Groups = append(out.Groups, *all[k])
	}
	out.Uses = v.uses()
	for i := range v.windowed {
		out.Windowed = append(out.Windowed, v.windowed[i].Windowed)
	}
	out.GPUs = v.gpus(out.Accounts)
	return out
}

// groupSums are the sums of groups while they are added up.
type groupSums map[Group]*GroupFigures

func (sums groupSums) group(k Group) *GroupFigures {
	g := keyed.At(sums, k)
	g.Group = k
	return g
}

func (sums groupSums) add(k Group, objects, inuse, peak int64) {
	if objects != 0 || inuse != 0 || peak != 0 {
		g := sums.group(k)
		g.LiveObjects += objects
		g.LiveBytes += inuse
		g.PeakBytes += peak
	}
}

// sum adds the figures of a snapshot's samples to sums, and returns the accounts.
func (v *View) sum(sums groupSums) (accounts []snapshot.Account) {
	for i := range v.sites {
		x, k := &v.sites[i], v.sites[i].group
		if x.pool {
			k.Kind = event.KindCached
		}
		sums.add(k, x.InuseObjects, x.InuseBytes-x.handed.inuse, x.PeakBytes-x.handed.peak)
	}
	for _, sites := range [][]site{v.tensors, v.physical} {
		for i := range sites {
			x := &sites[i]
			if x.Kind.Class() != event.ClassDriver || hasOwnSample(x.group.Kind) {
				sums.add(x.group, x.InuseObjects, x.InuseBytes, x.PeakBytes)
			} else {
				sums.add(Group{x.group.GPU, event.KindDriver, ownerDriver}, 0, x.underWay, 0)
			}
		}
	}
	for s := range v.processAccounts(func(i int) event.Kind { return v.physical[i].group.Kind }) {
		for _, r := range s.rest {
			sums.add(Group{v.gpuGroup(s.account.GPU), event.KindDriver, ownerDriver}, 0, r.inuse, r.peak)
		}
		if s.shown {
			accounts = append(accounts, s.account)
		}
	}
	return accounts
}

func compareGroups(a, b Group) int {
	return cmp.Or(cmp.Compare(len(a.GPU), len(b.GPU)), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Owner, b.Owner))
}

// gpuGroup returns the value of Group.GPU for a label: the label, or OtherGPUs if there are
// too many.
func (v *View) gpuGroup(label string) string {
	if !v.totals.labels[label] && len(v.totals.labels) >= maxGPUs {
		return OtherGPUs
	}
	return label
}

// uses returns the memory of each shown process on each GPU.
func (v *View) uses() (out []Use) {
	type key struct {
		id  event.Process
		gpu string
	}
	shown := map[event.Process]bool{}
	for _, id := range v.shown {
		shown[id] = true
	}
	at := map[key]int{}
	last, lastAt := key{}, -1 // sites come by process
	for i := range v.sites {
		x := &v.sites[i]
		if x.Kind.Class() != event.ClassDevice || !shown[x.Proc] {
			continue
		}
		if k := (key{x.Proc, x.gpu}); k != last || lastAt < 0 {
			n, ok := at[k]
			if !ok {
				n = len(out)
				at[k] = n
				out = append(out, Use{PID: int(x.Proc.PID), GPU: x.gpu})
			}
			last, lastAt = k, n
		}
		u := &out[lastAt]
		u.Live += x.InuseBytes
		u.Peak += x.PeakBytes
		u.Objects += x.InuseObjects
	}
	return out
}

// gpus returns each GPU, with the sum of the accounts on it.
func (v *View) gpus(accounts []snapshot.Account) (out []GPUFigures) {
	for _, g := range v.snapshot.GPUs {
		rest := v.totals.rests[g.GPU]
		t := GPUFigures{GPUMemory: g, Known: true, Residual: rest.Bytes, ResidualKnown: rest.Known}
		for i := range accounts {
			if a := &accounts[i]; a.GPU == g.GPU || onInstanceOf(a.GPU, g.GPU) {
				t.Held += a.Total
				t.Known = t.Known && a.Known
			}
		}
		out = append(out, t)
	}
	return out
}

// onInstanceOf reports whether label belongs to an instance of the GPU that has the label gpu.
func onInstanceOf(label, gpu string) bool {
	return len(label) > len(gpu) && label[:len(gpu)] == gpu && label[len(gpu)] == ':'
}
