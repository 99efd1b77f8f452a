package state

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Rows are in the order that comparisons give, whatever their times.
func TestByTime(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rows := make([]row, rng.IntN(300))
		span := uint64(1)<<rng.IntN(64) + rng.Uint64N(3)
		for i := range rows {
			rows[i] = row{time: rng.Uint64N(span), address: rng.Uint64N(4), handle: rng.Uint64N(4), site: rng.Int32N(4), size: int64(i)}
			if rng.IntN(50) == 0 {
				rows[i].time = ^uint64(0)
			}
		}
		want := slices.Clone(rows)
		slices.SortFunc(want, func(a, b row) int {
			for _, c := range [][2]uint64{{a.time, b.time}, {a.address, b.address}, {a.handle, b.handle}, {uint64(a.site), uint64(b.site)}, {uint64(a.size), uint64(b.size)}} {
				if c[0] < c[1] {
					return -1
				} else if c[0] > c[1] {
					return 1
				}
			}
			return 0
		})
		got := []row{}
		for _, i := range byTime(rows) {
			got = append(got, rows[i])
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: order %v, want %v", seed, got, want)
		}
	}
}

// The same records give the same snapshot, in the same order.
func TestSnapshotIsTheSame(t *testing.T) {
	for seed := range uint64(20) {
		var states [2]*State
		for i := range states {
			states[i] = New()
			for pid := range uint32(5) { // targets without a call
				states[i].Apply(&record.Process{Process: holder(900+pid, 0), Target: true, Name: "idle"})
			}
			traced(seed, 500, states[i].Apply)
		}
		want := Want{Live: true, Driver: true}
		if d := cmp.Diff(states[0].View(want).Snapshot(), states[1].View(want).Snapshot()); d != "" {
			t.Fatalf("seed %d (-one +other):\n%s", seed, d)
		}
	}
}

// Totals are those of a View's snapshot, and what its samples add up to.
func TestTotals(t *testing.T) {
	for seed := range uint64(20) {
		s := New()
		traced(seed, 500, s.Apply)
		got, out := s.Processes(), s.View(Want{}).Snapshot()
		if d := cmp.Diff(out.Processes, got); d != "" {
			t.Errorf("seed %d (-snapshot +totals):\n%s", seed, d)
		}
		bytes := map[int]int64{}
		for i := range out.Samples {
			bytes[out.Samples[i].PID] += out.Samples[i].InuseBytes
		}
		held := false
		for _, p := range got {
			held = held || p.Inuse > 0
			if p.Inuse != bytes[p.PID] {
				t.Errorf("seed %d: process %d has %d bytes in use, its samples %d", seed, p.PID, p.Inuse, bytes[p.PID])
			}
		}
		if !held {
			t.Errorf("seed %d: nothing in use", seed)
		}
	}
}
