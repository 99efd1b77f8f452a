package replay

import (
	"maps"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// At no moment is what a call took that has not returned rounding: that is a few of the
// driver's pieces.
func TestCallsUnderWay(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			most := map[string]int64{}
			took := false // by the latest record
			s, err := Play(path, Options{At: End, Before: func(s *state.State, r record.Record) {
				if took {
					for line, bytes := range linesOf(s) {
						most[line] = max(most[line], bytes)
					}
				}
				e, ok := r.(*event.Event)
				took = ok && e.Op == event.OpObjectMemory
			}})
			if err != nil {
				t.Fatal(err)
			}
			if got := most[state.LineRounding]; got > 8<<20 { // of arrays too
				t.Errorf("%d bytes of rounding", got)
			}
			if end := linesOf(s); most[state.LineUnderWay] == 0 && name != "video" || end[state.LineUnderWay] != 0 {
				t.Errorf("at most %d bytes of calls under way, %d at the end", most[state.LineUnderWay], end[state.LineUnderWay])
			}
		})
	}
}

// linesOf returns the lines of all accounts of a state, in bytes.
func linesOf(s *state.State) map[string]int64 {
	out := map[string]int64{}
	for _, a := range s.View(state.Want{Totals: true}).Totals().Accounts {
		for _, l := range a.Lines {
			out[l.Name] += l.Bytes
		}
	}
	maps.DeleteFunc(out, func(_ string, bytes int64) bool { return bytes == 0 })
	return out
}
