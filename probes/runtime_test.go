package probes

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// What is measured is what ran meanwhile, and nothing of before or after.
func TestMeasure(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "init")
	tr := openTrace(t, Options{})
	if err := tr.targets.add(p.PID(), others); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- tr.Run(counter{}, nil) }()
	a, err := attachRows(openLibrary(t, testcuda.Get(t).LibCUDA), tr.kernel.progs, nil, func(r *Row) bool { return r.Symbols[0] == "cuMemAlloc_v2" })
	if err != nil {
		t.Fatal(err)
	}
	const calls = 5000
	work := func() { run(t, p, fmt.Sprintf("repeat %d { cuMemAlloc_v2 512; cuMemFree_v2 }", calls)) }
	work()
	if got := tr.RunTime(); got != (RunTime{}) {
		t.Errorf("before: %+v", got)
	}
	ctx, end := context.WithCancel(t.Context())
	measuring := make(chan error)
	go func() { measuring <- tr.Measure(ctx, time.Hour) }()
	polls := uint64(0)
	for none := tr.kernel.stats().RunCount; tr.kernel.stats().RunCount == none; polls++ {
		run(t, p, "cuMemAlloc_v2 512; cuMemFree_v2")
	}
	work()
	end()
	if err := <-measuring; err != nil {
		t.Fatal(err)
	}
	got := tr.RunTime()
	if got.Runs < calls || got.Runs > 3*(calls+polls) || got.Run <= 0 || got.Run > got.Measured {
		t.Errorf("%+v of %d calls", got, calls)
	}
	work()
	if again := tr.RunTime(); again != got {
		t.Errorf("%+v after %+v", again, got)
	}
	if err := errors.Join(a.detach(), tr.Stop(), <-done); err != nil {
		t.Fatal(err)
	}
}
