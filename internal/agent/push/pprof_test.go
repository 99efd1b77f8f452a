package push

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// lines returns the samples of a profile that are not zero in some values, with some of
// their labels, and all that they refer to.
func lines(p *profile.Profile, has func(string) bool, labels func(string) bool) (out []string) {
	for _, s := range p.Sample {
		var b strings.Builder
		zero := true
		for i, t := range p.SampleType {
			if has(t.Type) {
				fmt.Fprintf(&b, "%s(%s)=%d ", t.Type, t.Unit, s.Value[i])
				zero = zero && s.Value[i] == 0
			}
		}
		if zero {
			continue
		}
		for _, l := range s.Location {
			fmt.Fprintf(&b, "at %x ", l.Address)
			if m := l.Mapping; m != nil {
				fmt.Fprintf(&b, "in %x-%x+%x %s %s %v ", m.Start, m.Limit, m.Offset, m.File, m.BuildID, []bool{m.HasFunctions, m.HasFilenames, m.HasLineNumbers, m.HasInlineFrames})
			}
			for _, x := range l.Line {
				fmt.Fprintf(&b, "%s|%s|%s:%d ", x.Function.Name, x.Function.SystemName, x.Function.Filename, x.Line)
			}
		}
		var with []string
		for name, values := range s.Label {
			if labels(name) {
				with = append(with, fmt.Sprintf("%s=%q", name, values))
			}
		}
		slices.Sort(with)
		out = append(out, b.String()+strings.Join(with, " "))
	}
	return out
}

// Each form of a profile, read by pprof's own package, is what the profile has of it: of
// recordings of real programs, the forms in either order.
func TestPacked(t *testing.T) {
	all := []form{{few: true}, {values: allocated}, {values: held}, {}}
	for _, name := range []string{"nccl", "accelerate", "jax"} {
		s, err := replay.Play("../../../test/recordings/"+name+".gmt", replay.Options{At: replay.End})
		if err != nil {
			t.Fatal(err)
		}
		view := s.View(state.Want{Driver: true, Unreported: true})
		begin, end := time.Unix(1_700_000_000, 5), time.Unix(1_700_000_060, 7)
		each, packs := view.ByProcess(), 0
		for i := range each {
			for range 2 {
				slices.Reverse(all)
				x, err := newProcess(&each[i], nil, begin, end)
				if err != nil {
					t.Fatal(err)
				}
				if x == nil {
					continue
				}
				for _, f := range all {
					packed, err := x.pack(f)
					if err != nil {
						t.Fatal(err)
					}
					want := lines(x.profile, f.values.has, func(name string) bool { return !f.few || slices.Contains(fewLabels, name) })
					if packed == nil {
						if len(want) != 0 {
							t.Errorf("%s %+v: nothing, want %d samples", name, f, len(want))
						}
						continue
					}
					p, err := profile.ParseData(packed)
					if err != nil {
						t.Fatalf("%s %+v: %v", name, f, err)
					}
					any := func(string) bool { return true }
					if d := cmp.Diff(want, lines(p, any, any)); d != "" {
						t.Fatalf("%s %+v: %.2000s", name, f, d)
					}
					if p.TimeNanos != end.UnixNano() || (p.DurationNanos == end.Sub(begin).Nanoseconds()) != (f.values != held) || p.Period != 1 || p.PeriodType.Unit != "bytes" || (p.DefaultSampleType == "inuse_space") != (f.values != allocated) {
						t.Errorf("%s %+v: %v %v %v %q", name, f, p.TimeNanos, p.DurationNanos, p.PeriodType, p.DefaultSampleType)
					}
					packs++
				}
			}
		}
		if packs == 0 {
			t.Errorf("%s has no profile", name)
		}
	}
}
