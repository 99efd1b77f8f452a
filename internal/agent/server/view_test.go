package server

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// The parts of a bar are of what is held, of what NVML said in one reading to be others',
// and of what is left; where that is not known the bar says that it is about so.
func TestParts(t *testing.T) {
	known := func(rest int64) *state.Totals {
		return &state.Totals{GPUs: []state.GPUTotals{{GPUMemory: snapshot.GPUMemory{GPU: "0"}, Residual: rest, ResidualKnown: true}}}
	}
	for name, tt := range map[string]struct {
		gpu    live.GPU
		totals *state.Totals
		want   []string
	}{
		"known":              {live.GPU{Label: "0", Total: 100, Used: 90, Held: 40}, known(30), []string{"a 25 B", "b 10 B", "cause not known 5 B", untraced + " 30 B", "free 30 B"}},
		"more than is there": {live.GPU{Label: "0", Total: 60, Used: 90, Held: 40}, known(30), []string{"a 25 B", "b 10 B", "cause not known 5 B", untraced + " 30 B"}},
		"nobody else":        {live.GPU{Label: "0", Total: 100, Used: 10, Held: 40}, known(-5), []string{"a 25 B", "b 10 B", "cause not known 5 B", "free 60 B"}},
		"not known":          {live.GPU{Label: "0", Total: 100, Used: 90, Held: 40}, &state.Totals{}, []string{"a 25 B", "b 10 B", "cause not known 5 B", "about: " + untraced + " 50 B", "about: free 10 B"}},
		"without NVML":       {live.GPU{Label: "0", Held: 40}, &state.Totals{}, []string{"a 25 B", "b 10 B", "cause not known 5 B"}},
	} {
		s := &Server{colours: map[string]map[string]int{}}
		s.history.take(tt.totals)
		var got []string
		sums := map[string]int64{"b": 10, "a": 25, causeUnknown: 5, "nothing": 0}
		for _, p := range s.parts("owner", sums, max(tt.gpu.Total, tt.gpu.Held), &tt.gpu) {
			got = append(got, p.Name+" "+p.Bytes)
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Many owners are a few and the rest together, and no part is lost.
func TestManyParts(t *testing.T) {
	s := &Server{colours: map[string]map[string]int{}}
	sums, want := map[string]int64{}, int64(0)
	for i := range 500 {
		sums[fmt.Sprint(i)] = int64(i)
		want += int64(i)
	}
	parts := s.parts("owner", sums, want, &live.GPU{Held: want})
	var got int64
	for _, p := range parts {
		got += p.bytes
	}
	if len(parts) != shownParts+1 || got != want || parts[shownParts].Name != fmt.Sprintf("%d others", 499-shownParts) {
		t.Errorf("%d parts of %d, want %d: %+v", len(parts), got, want, parts)
	}
}
