package probes

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// A pool says where its memory is when it is made, when it is asked for and when it is set.
func TestPools(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	run(t, p, "device 0")
	tr := traced(t, p, Options{})
	for _, c := range []struct {
		command string
		want    event.Event
	}{
		{"cuMemPoolCreate", event.Event{}},
		{"cuMemAllocFromPoolAsync(host)", event.Event{Kind: event.KindAsyncHost, Device: event.NoDevice}},
		{"cuMemAllocFromPoolAsync(other)", event.Event{Device: 1}},
		{"cuDeviceGetDefaultMemPool", event.Event{Part: event.PoolDefault}},
		{"cuDeviceGetMemPool", event.Event{Part: event.PoolCurrent}},
		{"cuDeviceSetMemPool", event.Event{Part: event.PoolCurrent}},
		{"cuMemGetDefaultMemPool", event.Event{Part: event.PoolDefault}},
		{"cuMemGetMemPool", event.Event{Part: event.PoolCurrent}},
		{"cuMemSetMemPool", event.Event{Part: event.PoolCurrent}},
	} {
		tr.drain()
		run(t, p, c.command)
		found := false
		for _, e := range tr.drain() {
			if e.Op != event.OpPoolCreate {
				continue
			}
			found = true
			if e.Handle == 0 || e.Kind != c.want.Kind || e.Device != c.want.Device || e.Part != c.want.Part {
				t.Errorf("%s: %+v, want %+v", c.command, e, c.want)
			}
		}
		if !found {
			t.Errorf("%s says nothing of its pool", c.command)
		}
	}
	tr.wantLoss(nil)
}
