package timeline

import (
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// The table of stacks says which object held most of a stack's tensors, where a recording
// has a reading of the heap, and has no such column elsewhere.
func TestHolders(t *testing.T) {
	const ms = time.Millisecond
	tensor := func(after time.Duration, stack, addr uint64) *event.Event {
		return &event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Proc: proc, TID: proc.PID, Time: at(after), Addr: addr, Size: 4096, Stack: stack, Handle: event.NoTotal, Part: event.NoTotal}
	}
	records := []record.Record{traceOf(),
		&record.Process{Process: proc, Target: true, FromStart: true, Name: "prog"}, momentAt(0), stack(proc, 1, "/x/train.py", "load"), stack(proc, 2, "/x/train.py", "forward"),
		alloc(proc, 100*ms, 1, 1<<40, 1<<20), tensor(110*ms, 2, 1<<40), tensor(120*ms, 2, 1<<40+4096), tensor(130*ms, 2, 1<<40+8192), tensor(140*ms, 1, 1<<40+12288),
	}
	held := func(i uint64, path string) holder.Storage {
		return holder.Storage{Address: 1<<40 + i*4096, Bytes: 4096, Holder: path}
	}
	heaps := record.Heaps(proc, &holder.Reading{Runtime: "CPython 3.12", Begin: at(200 * ms), End: at(210 * ms),
		Storages: []holder.Storage{held(0, "losses[0]"), held(1, "losses[1]"), held(2, "model.weight\x1b")}})
	column := func(extra ...record.Record) []string {
		_, p, _ := written(t, recordtest.File(t, append(slices.Concat(records, extra), momentAt(500*ms))...), whole)
		if p.meta.Rows.Holder == nil {
			return nil
		}
		out := []string{}
		for row, i := range p.meta.Rows.Holder {
			if text := p.meta.Strings[i]; text != "" {
				out = append(out, p.meta.Strings[p.meta.Rows.Cause[row]]+": "+text)
			}
		}
		return out
	}
	if got := column(); got != nil {
		t.Errorf("without a reading there are holders: %v", got)
	}
	if got := column(heaps[0]); !slices.Equal(got, []string{"tensors: losses[*] and 1 more"}) {
		t.Errorf("holders: %q", got)
	}
}
