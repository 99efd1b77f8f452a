package state

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/physical"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/windows"
)

// maxShortages bounds the processes that notes name because they lost detail.
const maxShortages = 10

// A shortage is a process that wanted more of a table than its share.
type shortage struct {
	id        event.Process
	held, max int
	table     string // the name of its entries
	lost      uint64
	effect    string // what each lost entry means
}

// The entries of each table, and the loss without one.
var shortageEffects = [ledger.NumShared][2]string{
	ledger.SharedRows:     {"rows of live allocations", "allocations went under no call stack"},
	ledger.SharedExtra:    {"live allocations without a row", "allocations are in no figure of memory in use"},
	ledger.SharedMappings: {"mappings of physical memory", "mappings were not kept"},
	ledger.SharedSites:    {"call sites", "call sites, or calls without one, are under no call stack"},
}

// shortages returns sentences that name the processes that lost detail because they
// held more of a table than their share.
func (s *State) shortages() (notes []string) {
	var all []shortage
	layer := func(l *ledger.Ledger, prefix string) {
		for x := range l.Shortages {
			words := shortageEffects[x.Table]
			all = append(all, shortage{x.Proc, x.Used, x.Max, words[0] + prefix, x.Lost, words[1]})
		}
	}
	layer(s.ledger, "")
	if s.trace.Physical {
		layer(s.physical.Rows, " of the kernel driver's")
	}
	layer(s.tensors.Rows, " of tensors")
	for x := range s.physical.Shortages {
		all = append(all, shortage{x.Proc, x.Used, physical.MaxObjects, "objects of the kernel driver's", x.Lost, "objects were not kept: memory among them is in no total"})
	}
	for x := range s.windows.Shortages {
		all = append(all, shortage{x.Process, x.Used, windows.MaxSites, "call stacks of tensors in windows", x.Lost, "tensors in windows are under no call stack"})
	}
	for x := range s.stacks.Shortages {
		all = append(all, shortage{x.Process, x.Held, stacks.MaxFrames, "frames of call stacks", x.Lost, "call stacks have no frames"})
	}
	slices.SortFunc(all, func(a, b shortage) int {
		return cmp.Or(cmp.Compare(b.lost, a.lost), a.id.Compare(b.id), cmp.Compare(a.table, b.table))
	})
	for i, x := range all {
		if i == maxShortages {
			notes = append(notes, fmt.Sprintf("%d more processes lost detail because they held their share of a table", len(all)-i))
			break
		}
		who := fmt.Sprintf("process %d", x.id.PID)
		if name := s.Name(x.id); name != "" {
			who += fmt.Sprintf(" (%s)", name)
		}
		if uid, known := s.processes.user(x.id); known {
			who += fmt.Sprintf(" of user %d", uid)
		}
		notes = append(notes, fmt.Sprintf("%s holds %d of %d %s, which is its share: %d of its %s", who, x.held, x.max, x.table, x.lost, x.effect))
	}
	return notes
}
