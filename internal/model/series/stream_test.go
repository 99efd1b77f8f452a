package series

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// However much a stream is reduced: what it has of an instant is what was held then, each
// place's highest total is there, and in each bucket the lowest and highest too.
func TestStreamKeepsPeaks(t *testing.T) {
	const changes, lines, places = 60_000, 40, 3
	for _, most := range []int{1 << 30, 30_000, 5000, 300} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			s := New(most, func(line int32) int { return int(line%(places+1)) - 1 })
			held := make([]int64, lines)
			then := map[uint64][]int64{}
			var peaks, lows [places]int64
			total := func(held []int64) (sums [places]int64) {
				for i, v := range held {
					if p := i%(places+1) - 1; p >= 0 {
						sums[p] += v
					}
				}
				return sums
			}
			for i := range changes {
				var by []Delta
				for _, line := range rng.Perm(lines)[:1+rng.IntN(2)] {
					v := rng.Int64N(1000)
					if rng.IntN(5000) == 0 {
						v *= 100
					}
					if held[line] > 0 {
						v = -held[line]
					}
					held[line] += v
					by = append(by, Delta{int32(line), v})
				}
				time := uint64(i + 1)
				s.Add(time, Sum(by))
				then[time] = slices.Clone(held)
				for p, v := range total(held) {
					peaks[p], lows[p] = max(peaks[p], v), min(lows[p], v)
				}
			}
			s.Finish()
			var instants []Instant
			deltas := 0
			for x := range s.log.drain {
				x.By = slices.Clone(x.By)
				instants, deltas = append(instants, x), deltas+len(x.By)
			}
			if deltas > most || deltas != s.log.deltas || s.changes != changes {
				t.Errorf("%d of %d deltas of %d changes", deltas, s.log.deltas, s.changes)
			}
			if most > changes*2 && len(instants) != changes {
				t.Errorf("%d instants", len(instants))
			}
			if len(instants) < min(changes, most/(3*lines)) {
				t.Errorf("only %d instants", len(instants))
			}
			got := make([]int64, lines)
			var highest [places]int64
			for _, x := range instants {
				for _, d := range x.By {
					got[d.Line] += d.Bytes
				}
				if !slices.Equal(got, then[x.Time]) {
					t.Fatalf("at %d: %v, not %v", x.Time, got, then[x.Time])
				}
				for p, v := range total(got) {
					highest[p] = max(highest[p], v)
				}
			}
			if highest != peaks {
				t.Errorf("peaks %v, not %v", highest, peaks)
			}
			// A bucket goes on from the last of the one before.
			then[0] = make([]int64, lines)
			first, at2 := uint64(1), 0
			for i, x := range instants {
				if !x.last {
					continue
				}
				for p := range places {
					low, high := extremesOf(then, first, x.Time, func(v []int64) int64 { return total(v)[p] })
					v := total(then[first-1])[p]
					is := [2]bool{v == low, v == high}
					for _, y := range instants[at2 : i+1] {
						v := total(then[y.Time])[p]
						is[0], is[1] = is[0] || v == low, is[1] || v == high
					}
					if is != [2]bool{true, true} {
						t.Fatalf("bucket %d to %d lacks the lowest or the highest of place %d", first, x.Time, p)
					}
				}
				first, at2 = x.Time+1, i+1
			}
		})
	}
}

func extremesOf(then map[uint64][]int64, from, to uint64, of func([]int64) int64) (low, high int64) {
	low, high = of(then[to]), of(then[to])
	for t := from; t <= to; t++ {
		low, high = min(low, of(then[t])), max(high, of(then[t]))
	}
	return low, high
}
