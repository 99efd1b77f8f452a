package leak

import (
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// divided moves all but the first of the allocations of each sample to parts that have
// holders, as a state does where a heap was read.
func divided(s *snapshot.Snapshot, w *world, holders ...string) (*snapshot.Snapshot, func(func(ledger.SiteKey) bool)) {
	var origins []int
	seen := map[int]int{}
	for i := range s.Live {
		a := &s.Live[i]
		of := &s.Samples[a.Sample]
		if seen[a.Sample]++; seen[a.Sample] == 1 {
			continue
		}
		part := *of
		part.Holder, part.Values = holders[i%len(holders)], snapshot.Values{InuseBytes: a.Size, InuseObjects: 1}
		of.Sub(&part.Values)
		origins = append(origins, a.Sample)
		a.Sample = len(s.Samples)
		s.Samples = append(s.Samples, part)
	}
	return s, func(yield func(ledger.SiteKey) bool) {
		w.sites(yield)
		for _, i := range origins {
			if !yield(siteKey(i)) {
				return
			}
		}
	}
}

// What leaks is the same whether samples are divided by holder or not, and the holder of
// most of it is named.
func TestHolder(t *testing.T) {
	o := Options{Interval: 30 * time.Second}
	w := newWorld(leaking(20*mib), leaking(3*mib))
	d := New(o)
	for i := range 24 {
		w.interval(i+1, d.opts.Interval)
		d.Observe(w.now, w.held)
	}
	want := d.Report(w.snapshot(true), w.sites)
	s, sites := divided(w.snapshot(true), w, "trainer.history[*].grad_fn", "trainer.history[*]", "model.cache")
	s.Heaps = []snapshot.Heap{{PID: 1}, {PID: 4711, Reading: &holder.Reading{Retainers: []holder.Retainer{
		{Holder: "trainer", Class: "Trainer", Graph: 1}, {Holder: "trainer.history", Class: "list", Items: 24, Graph: 24 * 40 * mib},
	}}}}
	s.Heaps[0].Reading = s.Heaps[1].Reading
	got := d.Report(s, sites)
	if len(got.Stacks) != 2 || len(want.Stacks) != 2 || got.GivenBack+got.Ageless != 0 {
		t.Fatalf("%d stacks leak, %d without holders; %d gave back, %d have no age", len(got.Stacks), len(want.Stacks), got.GivenBack, got.Ageless)
	}
	for i := range got.Stacks {
		a, b := got.Stacks[i], want.Stacks[i]
		if a.Growth != b.Growth || a.OldBytes != b.OldBytes || a.Sample.InuseBytes != b.Sample.InuseBytes || a.Holder.Name != "trainer.history" {
			t.Errorf("%+v, want %+v", a, b)
		}
	}
	if h := got.Stacks[0].Holder; h.Class != "list" || h.Items != 24 || h.Bytes != 15*20*mib || h.Objects != 15 || h.Graph != 24*40*mib {
		t.Errorf("the holder is %+v", h)
	}
}

func TestContainer(t *testing.T) {
	for path, want := range map[string]string{
		"trainer.history[*]": "trainer.history", "trainer.history[*].grad_fn": "trainer.history", "model.layers[*].cache[*]": "model.layers[*].cache",
		"model.layers[3].weight": "model.layers[3].weight", "": "", "[*]": "[*]",
	} {
		if got := container(path); got != want {
			t.Errorf("container(%q) = %q, want %q", path, got, want)
		}
	}
}
