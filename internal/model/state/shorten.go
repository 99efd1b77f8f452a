package state

import (
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A frame weighs one for itself, one for each of its lines, and one for each weighText bytes
// of their texts. The stacks of a Snapshot weigh at most maxWeight together, and each at
// most maxStackWeight: outputs write a stack out for each sample, and a recording can have
// few long stacks in many processes. The 49,152 call sites of a full state, each with a
// stack of its own of 80 frames with names of 100 bytes, weigh less.
const (
	maxWeight      = 16 << 20
	maxStackWeight = 1 << 16
	weighText      = 64
)

var lossShortened = loss.Of("stacks_shortened", "stacks shown without their outermost frames because all stacks together are too long")

func weigh(l *snapshot.Location) int {
	weight := 1
	for i := range l.Lines {
		line := &l.Lines[i]
		weight += 1 + (len(line.Function)+len(line.System)+len(line.File)+len(line.Reason))/weighText
	}
	return weight
}

// shorten removes outer frames from the heaviest stacks until all of them are within bounds,
// and returns how many stacks it cut.
func shorten(samples []snapshot.Sample) (cut uint64) {
	weights := map[*snapshot.Location]int{}
	weightOf := func(l *snapshot.Location) int {
		w, ok := weights[l]
		if !ok {
			w = weigh(l)
			weights[l] = w
		}
		return w
	}
	type stack struct { // samples share stacks
		first **snapshot.Location
		n     int
	}
	weightsOf := map[stack]int{}
	all, sum := make([]int, len(samples)), 0
	for i := range samples {
		frames := samples[i].Stack
		if len(frames) == 0 {
			continue
		}
		key := stack{&frames[0], len(frames)}
		weight, ok := weightsOf[key]
		if !ok {
			for _, l := range frames {
				weight += weightOf(l)
			}
			weightsOf[key] = weight
		}
		all[i], sum = weight, sum+weight
	}
	limit := share(all, sum)
	cuts := map[stack][]*snapshot.Location{}
	for i := range samples {
		if all[i] <= limit {
			continue
		}
		cut++
		frames := samples[i].Stack
		key := stack{&frames[0], len(frames)}
		short, ok := cuts[key]
		if !ok {
			weight, n := 0, 0
			for n < len(frames)-1 && weight+weightOf(frames[n]) <= limit {
				weight += weightOf(frames[n])
				n++
			}
			left := &snapshot.Location{Lines: []snapshot.Line{{Function: fmt.Sprintf("[%d outer frames are not shown]", len(frames)-n)}}}
			short = append(slices.Clone(frames[:n]), left)
			cuts[key] = short
		}
		samples[i].Stack = short
	}
	return cut
}

// share returns the most that one of these weights may be so that all of them are within
// maxWeight: the heavier ones divide the room that the lighter ones leave, in equal parts.
func share(weights []int, sum int) int {
	if sum <= maxWeight {
		return maxStackWeight
	}
	sorted := slices.Clone(weights)
	slices.Sort(sorted)
	room := maxWeight
	for i, w := range sorted {
		part := room / (len(sorted) - i)
		if w > part {
			return min(part, maxStackWeight)
		}
		room -= w
	}
	return maxStackWeight
}
