package findings

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// BenchmarkFind looks at as much as a state keeps: 65,536 call sites on lines of their own, a million
// live tensors, 1,000 training steps and 500 processes.
func BenchmarkFind(b *testing.B) {
	m := training()
	m.steps(1000, 0)
	categories := []string{stacks.Activation, stacks.Temporary, stacks.Workspace, stacks.Gradient}
	for i := range 1 << 16 {
		m.tensors(categories[i%len(categories)], "aten::to", 16, 16*mib, python("step", "/home/me/train.py", i), main)
	}
	for i := range 1 << 20 {
		m.Live = append(m.Live, snapshot.Allocation{Sample: 2 + i%(1<<16), Address: uint64(i), Size: mib, Time: m.Meta.Start.Add(time.Duration(30+i%1000) * time.Second)})
	}
	for pid := range 500 {
		m.hold(context(100+pid, "0"), 17, 518*mib, main)
		m.Processes = append(m.Processes, snapshot.Process{PID: 100 + pid, Name: "python3", Who: snapshot.Who{Command: fmt.Sprint("python3 ", pid)}})
	}
	m.heap(storages(100_000, "x%d.y", 32*mib, func(s *holder.Storage) { s.Role, s.Module = holder.Parameter, s.Holder })...)
	for b.Loop() {
		Find(m.Snapshot, m.Snapshot)
	}
}
