package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Totals are sums over a State, without call stacks. All are of one moment, but for what
// NVML says, which is as last read.
type Totals struct {
	Meta   snapshot.Meta
	Groups []GroupTotals // in order
	// Processes are those that live, or that a snapshot shows; Uses what each of them has
	// on each GPU, by process.
	Processes []snapshot.Process
	Uses      []Use
	Accounts  []snapshot.Account
	GPUs      []GPUTotals
	// OutOfMemory counts failures for want of memory, by the label of the GPU: calls of a
	// thread that fail one soon after the other are one, those that it recovered from count
	// too. Latest are the last of them, at most so many as maxLatest.
	OutOfMemory map[string]int64
	Latest      []LatestFailure
	Loss        []loss.Counter
}

// GroupTotals are the sums of one Group. What it has live and had at peaks is as the samples
// of a snapshot have it. Counts are of what was allocated and freed since the trace began,
// by processes that are gone too: memory of KindCached has none, because it is what is left
// of memory of another kind, and that of KindTensor lies in memory which is counted too.
type GroupTotals struct {
	Group
	LiveObjects, LiveBytes int64
	PeakBytes              int64 // held at the highest total of each process, at its own time
	ledger.Counts
}

// A Use is what a process has allocated on a GPU, in bytes of class device.
type Use struct {
	PID        int
	GPU        string // label
	Live, Peak int64
	Objects    int64
}

// GPUTotals are one GPU, or an instance of one, as NVML says, and what traced processes
// hold there.
type GPUTotals struct {
	snapshot.GPUMemory
	Held  int64 // the totals of the accounts on it
	Known bool  // all of Held is
	// Residual is what of Used no traced process held when that was read, if ResidualKnown:
	// others have it, or the driver for itself.
	Residual      int64
	ResidualKnown bool
}

// A LatestFailure is a failure for want of memory.
type LatestFailure struct {
	Number    int64 // counted from 1 on, over all GPUs
	PID       int
	Process   string // comm
	GPU       string // label
	Requested uint64 // bytes, by the first call
	Time      time.Time
}

// Totals adds up what v shows, which was taken with Want.Totals. It names no stack.
func (v *View) Totals() *Totals {
	out := &Totals{Meta: v.snapshot.Meta, Processes: v.snapshot.Processes, OutOfMemory: v.outOfMemory, Latest: v.latest, Loss: v.snapshot.Loss}
	var all *sum
	if v.want.Sums != nil {
		all = v.want.Sums.take(v)
	} else {
		all = v.sum()
	}
	for k, c := range v.counted {
		if k.Kind.Class() != event.ClassDriver || apart(k.Kind) {
			all.group(k).Counts = c
		}
	}
	for _, x := range all.accounts {
		out.Accounts = append(out.Accounts, x.Account)
	}
	for _, k := range slices.SortedFunc(maps.Keys(all.groups), compareGroups) {
		out.Groups = append(out.Groups, *all.groups[k])
	}
	out.Uses = all.uses
	out.GPUs = v.gpus(out.Accounts)
	return out
}

func compareGroups(a, b Group) int {
	return cmp.Or(cmp.Compare(len(a.GPU), len(b.GPU)), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Owner, b.Owner))
}

// gpuGroup is a label as Group.GPU has it.
func (v *View) gpuGroup(label string) string {
	if !v.admitted[label] && len(v.admitted) >= maxGPUs {
		return OtherGPUs
	}
	return label
}

// uses returns what each process that is shown has on each GPU.
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

// gpus returns each GPU, with what the accounts on it hold.
func (v *View) gpus(accounts []snapshot.Account) (out []GPUTotals) {
	for _, g := range v.snapshot.GPUs {
		rest := v.rests[g.GPU]
		t := GPUTotals{GPUMemory: g, Known: true, Residual: rest.Bytes, ResidualKnown: rest.Known}
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

// onInstanceOf tells whether a label is that of an instance of the GPU with another.
func onInstanceOf(label, gpu string) bool {
	return len(label) > len(gpu) && label[:len(gpu)] == gpu && label[len(gpu)] == ':'
}
