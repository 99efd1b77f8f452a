package export

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/model/leak"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

const mib = 1 << 20

// leaked is a stack that leaked an allocation of a size in each of 24 intervals.
func leaked(size int64, h leak.Holder) leak.Stack {
	x := leak.Stack{Growth: 24 * size, GrowthObjects: 24, Rises: 24, Span: 24, MedianRise: size, OldBytes: 21 * size, OldObjects: 21, Holder: h}
	x.Sample = snapshot.Sample{Labels: snapshot.Labels{Kind: "device", GPU: "0", Owner: "pytorch", Process: "python3", PID: 4711},
		Values: snapshot.Values{InuseBytes: 24 * size, InuseObjects: 24}}
	for _, l := range []snapshot.Line{{Function: "cuMemAlloc_v2"}, {Function: "pool::grow", File: "/opt/pool.cc", Line: 77}, {Function: "<module>", File: "/home/me/train.py", Line: 102}} {
		x.Sample.Stack = append(x.Sample.Stack, &snapshot.Location{Lines: []snapshot.Line{l}})
	}
	const interval = 30 * time.Second
	for i, n := range []int64{0, 1, 2, 4, 8, 9} {
		a := leak.Age{To: interval << i, Bytes: n * size, Objects: n}
		if i > 0 {
			a.From = interval << (i - 1)
		}
		x.Ages = append(x.Ages, a)
	}
	return x
}

func leaks(stacks ...leak.Stack) *leak.Report {
	return &leak.Report{Options: leak.Options{Interval: 30 * time.Second, Intervals: 5, Outlive: 3, MaxSites: 1 << 16}, Target: "pid 4711 (python3)", Intervals: 24, Stacks: stacks}
}

func TestLeaks(t *testing.T) {
	everything := leaks(leaked(20*mib, leak.Holder{}), leaked(3<<10, leak.Holder{}))
	everything.GivenBack, everything.Ageless, everything.Unwatched = 1, 1, 17
	list := leak.Holder{Name: "trainer.history", Class: "list", Items: 24, Bytes: 300 * mib, Objects: 15, Graph: 24 * 40 * mib}
	short, segments, hostile := leaks(), leaks(), leaks(leak.Stack{Sample: snapshottest.Hostile().Samples[0]})
	steps := leaks(leaked(20*mib, list))
	steps.Options.Steps = 16
	short.Intervals, segments.Segments, hostile.Target = 1, true, snapshottest.Hostile().Meta.Target
	for name, test := range map[string]struct {
		report *leak.Report
		layout Options
	}{
		"leaks":    {everything, Options{}},
		"color":    {everything, Options{Width: 60, Color: true}},
		"holders":  {leaks(leaked(20*mib, list), leaked(3*mib, leak.Holder{Name: "x", Class: "Trainer", Bytes: 45 * mib, Objects: 15, Graph: mib}), leaked(1, leak.Holder{Name: "y"})), Options{}},
		"none":     {leaks(), Options{}},
		"steps":    {steps, Options{}},
		"short":    {short, Options{}},
		"segments": {segments, Options{}},
		"hostile":  {hostile, Options{}},
		"no-stack": {leaks(leak.Stack{Sample: snapshot.Sample{Labels: snapshot.Labels{Kind: "vmm", GPU: "unknown"}}}), Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Leaks(&b, test.report, test.layout); err != nil {
				t.Fatal(err)
			}
			snapshottest.Golden(t, "leaks/"+name+".txt", b.Bytes())
			if test.layout.Color {
				return
			}
			for line := range strings.Lines(b.String()) {
				line = strings.TrimSuffix(line, "\n")
				if n := utf8.RuneCountInString(line); n > render.DefaultWidth || strings.ContainsFunc(line, render.Unsafe) || strings.Contains(line, "…") {
					t.Errorf("%q is cut, unsafe or too long (%d columns)", line, n)
				}
			}
		})
	}
}

func TestManyLeaks(t *testing.T) {
	var stacks []leak.Stack
	for i := range int64(maxLeaks + 3) {
		stacks = append(stacks, leaked(i+1, leak.Holder{}))
	}
	var b bytes.Buffer
	if err := Leaks(&b, leaks(stacks...), Options{}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(b.String(), "  STACK\n"); got != maxLeaks {
		t.Errorf("%d stacks shown, want %d", got, maxLeaks)
	}
	if !strings.Contains(b.String(), "\n3 stacks more, with less growth\n") {
		t.Errorf("the rest is not mentioned:\n%s", b.String())
	}
	full := errors.New("disk full")
	if err := Leaks(limitedWriter{full}, leaks(), Options{}); !errors.Is(err, full) {
		t.Errorf("Leaks returned %v, want %v", err, full)
	}
}
