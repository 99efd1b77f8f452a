package server

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

const (
	// maxPresences bounds the processes of a history, counted once for each GPU.
	maxPresences = 1024
	// maxStakes bounds the processes that one entry of the history keeps apart. The rest of a
	// GPU are "other processes", for at most maxOthers GPUs: a program may name any number.
	maxStakes = 128
	maxOthers = 256
)

// An identity is a process, as the history knows it.
type identity struct {
	pid  int // 0 for others
	name string
	who  snapshot.Who

	seen      time.Time // holding memory, the last time
	presences int
}

// A presence is a process on a GPU.
type presence struct {
	id   int64
	gpu  string // label
	of   *identity
	seen time.Time
}

// A stake is what a presence held at a moment: its ID, and bytes.
type stake [2]int64

// presences are those that notes have, and those of each GPU that stand for others.
type presences struct {
	all   map[int64]*presence
	at    map[presenceKey]*presence
	known map[int]*identity // the latest with each PID
	last  int64             // ID
	lost  *loss.Set
}

// A presenceKey names a presence by its process and GPU.
type presenceKey struct {
	gpu string
	of  *identity
}

// stakes returns what processes hold in totals, by ID. There must be room for maxStakes
// presences. before is the time of the note before.
func (p *presences) stakes(t *state.Totals, at, before time.Time) (out []stake) {
	type key struct {
		gpu string
		pid int
	}
	held, names := map[key]int64{}, map[int]string{}
	for i := range t.Accounts {
		if a := &t.Accounts[i]; a.Total > 0 {
			held[key{a.GPU, a.PID}] += a.Total
			names[a.PID] = a.Process
		}
	}
	who := map[int]*snapshot.Who{}
	for i := range t.Processes {
		if x := &t.Processes[i]; who[x.PID] == nil || !x.Exited {
			who[x.PID] = &x.Who
		}
	}
	p.last = max(p.last, at.UnixMilli()) // an agent that starts later has larger IDs
	sums := map[int64]int64{}
	keys := sorting.Keys(held, func(a, b key) int {
		return cmp.Or(cmp.Compare(held[b], held[a]), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.pid, b.pid))
	})
	for i, k := range keys {
		var x *presence
		if i < maxStakes {
			of := p.identify(k.pid, names[k.pid], who[k.pid], before)
			of.seen = at
			x = p.on(k.gpu, of)
		} else {
			p.lost.Add(lossPresences, 1)
			x = p.others(k.gpu)
		}
		x.seen = at
		sums[x.id] += held[k]
	}
	for id, bytes := range sums {
		out = append(out, stake{id, bytes})
	}
	slices.SortFunc(out, func(a, b stake) int { return cmp.Compare(a[0], b[0]) })
	return out
}

// identify returns the process with a PID, and learns what is new of it.
func (p *presences) identify(pid int, name string, who *snapshot.Who, before time.Time) *identity {
	if p.known == nil {
		p.all, p.at, p.known = map[int64]*presence{}, map[presenceKey]*presence{}, map[int]*identity{}
	}
	if who == nil {
		who = &snapshot.Who{}
	}
	of := p.known[pid]
	// A process that was away may be another one with the same PID.
	if of == nil || of.seen.Before(before) && (of.name != name || of.who != of.who.Learn(*who)) {
		of = &identity{pid: pid}
		p.known[pid] = of
	}
	of.name, of.who = name, of.who.Learn(*who)
	return of
}

// on returns the presence of a process on a GPU.
func (p *presences) on(gpu string, of *identity) *presence {
	x := p.at[presenceKey{gpu, of}]
	if x == nil {
		p.last++
		of.presences++
		x = &presence{id: p.last, gpu: gpu, of: of}
		p.all[x.id], p.at[presenceKey{gpu, of}] = x, x
	}
	return x
}

// others returns the presence of a GPU that stands for others.
func (p *presences) others(gpu string) *presence {
	of := p.identify(0, "", nil, time.Time{})
	if p.at[presenceKey{gpu, of}] == nil && of.presences >= maxOthers {
		gpu = state.OtherGPUs
	}
	return p.on(gpu, of)
}

// drop forgets a presence.
func (p *presences) drop(x *presence) {
	delete(p.all, x.id)
	delete(p.at, presenceKey{x.gpu, x.of})
	if x.of.presences--; x.of.presences == 0 && p.known[x.of.pid] == x.of {
		delete(p.known, x.of.pid)
	}
}

// full reports whether there is no room for another note.
func (p *presences) full() bool {
	n := len(p.all)
	if of := p.known[0]; of != nil {
		n -= of.presences
	}
	return n > maxPresences-maxStakes
}

// fold drops n presences, and returns which others stand for them now. Of the users with
// most of them, it drops those that are gone the longest. Those of the last note stay.
func (p *presences) fold(n int, last time.Time) map[int64]int64 {
	gone := map[string][]*presence{} // by user
	for _, x := range p.all {
		if x.of.pid != 0 && x.seen.Before(last) {
			gone[x.of.who.User] = append(gone[x.of.who.User], x)
		}
	}
	for _, of := range gone {
		slices.SortFunc(of, func(a, b *presence) int { return cmp.Or(a.seen.Compare(b.seen), cmp.Compare(a.id, b.id)) })
	}
	users := slices.Sorted(maps.Keys(gone))
	folded := map[int64]int64{}
	for ; n > 0 && len(users) > 0; n-- {
		most := slices.MaxFunc(users, func(a, b string) int { return cmp.Compare(len(gone[a]), len(gone[b])) })
		if len(gone[most]) == 0 {
			break
		}
		x := gone[most][0]
		gone[most] = gone[most][1:]
		folded[x.id] = p.others(x.gpu).id
		p.lost.Add(lossPresences, 1)
		p.drop(x)
	}
	return folded
}

// merged returns stakes in which others stand for those that were folded.
func merged(held []stake, folded map[int64]int64) []stake {
	if !slices.ContainsFunc(held, func(s stake) bool { _, is := folded[s[0]]; return is }) {
		return held
	}
	sums := map[int64]int64{}
	for _, s := range held {
		id, is := folded[s[0]]
		if !is {
			id = s[0]
		}
		sums[id] += s[1]
	}
	out := make([]stake, 0, len(sums))
	for _, id := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, stake{id, sums[id]})
	}
	return out
}

// sameStakes reports whether two notes have the same stakes, as notes that follow each other
// often do: then they have the same slice.
func sameStakes(a, b []stake) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// A namedPresence is a presence as pages and programs get it.
type namedPresence struct {
	ID      int64  `json:"id"`
	GPU     string `json:"gpu"` // label
	PID     int    `json:"pid"` // 0 for others
	Process string `json:"process"`
	snapshot.Who
}

func (x *presence) named() namedPresence {
	out := namedPresence{x.id, web.Clean(x.gpu), x.of.pid, web.Clean(x.of.name), x.of.who}
	for _, field := range out.Fields() {
		*field = web.Clean(*field)
	}
	return out
}
