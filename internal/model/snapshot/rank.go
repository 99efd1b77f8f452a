package snapshot

import (
	"cmp"
	"slices"
)

// Ranks returns what each process that is a rank is called, by its PID: "rank 1 of 8". A process that
// a rank started, such as a worker, has the rank's environment, and is none.
func (s *Snapshot) Ranks() map[int]string {
	byPID, ranks := map[int]*Process{}, map[int]string{}
	for i := range s.Processes {
		byPID[s.Processes[i].PID] = &s.Processes[i]
	}
	for pid, p := range byPID {
		parent := byPID[p.Parent]
		if name := p.RankName(); name != "" && (parent == nil || parent.Rank != p.Rank || parent.Peak == 0) {
			ranks[pid] = name
		}
	}
	return ranks
}

// ByRank returns s with ranks called so, as people read it.
func (s *Snapshot) ByRank() *Snapshot {
	ranks := s.Ranks()
	if len(ranks) == 0 {
		return s
	}
	named := *s
	rename := func(pid int, name *string) { *name = cmp.Or(ranks[pid], *name) }
	renameAll(&named.Samples, func(x *Sample) { rename(x.PID, &x.Process) })
	renameAll(&named.Processes, func(x *Process) { rename(x.PID, &x.Name) })
	renameAll(&named.Accounts, func(x *Account) { rename(x.PID, &x.Process) })
	renameAll(&named.Allocators, func(x *Allocator) { rename(x.PID, &x.Process) })
	renameAll(&named.Steps, func(x *Steps) { rename(x.PID, &x.Process) })
	renameAll(&named.Windowed, func(x *Windowed) { rename(x.PID, &x.Process) })
	return &named
}

// renameAll calls rename for each of a copy of xs.
func renameAll[T any](xs *[]T, rename func(*T)) {
	*xs = slices.Clone(*xs)
	for i := range *xs {
		rename(&(*xs)[i])
	}
}

// ByRank is the same of a failure.
func (o *OutOfMemory) ByRank() *OutOfMemory {
	named := *o
	named.Process = cmp.Or(o.Snapshot.Ranks()[o.PID], o.Process)
	named.Snapshot = o.Snapshot.ByRank()
	return &named
}
