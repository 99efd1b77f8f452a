package leak

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

func TestWrite(t *testing.T) {
	everything := func() *Report {
		slow := leaking(3 * kib)
		slow.run = func(p *program, n int) { // each allocation replaces a brief one
			if len(p.live) > 0 {
				p.live = p.live[:len(p.live)-1]
			}
			p.alloc(3 * kib)
			p.alloc(int64(n) * 100)
		}
		ended := leaking(5)
		w := newWorld(&program{name: "constant", run: func(p *program, n int) { once(p, n == 1) }}, slow, leaking(20*mib), ended)
		r := watch(Options{Interval: 30 * time.Second}, w, 24, func() { ended.live = nil })
		r.Ageless, r.Unwatched = 1, 17
		return r
	}
	for name, test := range map[string]struct {
		report *Report
		width  int
		color  bool
	}{
		"leaks.txt":    {everything(), 0, false},
		"color.txt":    {everything(), 60, true},
		"none.txt":     {watch(Options{}, newWorld(), 24, nil), 0, false},
		"short.txt":    {watch(Options{}, newWorld(leaking(mib)), 1, nil), 0, false},
		"segments.txt": {&Report{Options: Options{}.withDefaults(), Intervals: 9, Target: "pid 1", Segments: true}, 0, false},
		"hostile.txt":  {&Report{Options: Options{}.withDefaults(), Intervals: 9, Target: snapshottest.Hostile().Meta.Target, Stacks: []Stack{{Sample: snapshottest.Hostile().Samples[0]}}}, 0, false},
		"no-stack.txt": {&Report{Options: Options{}.withDefaults(), Intervals: 9, Target: "pid 1", Stacks: []Stack{{Sample: snapshot.Sample{Labels: snapshot.Labels{Kind: "vmm", GPU: "unknown"}}}}}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Write(&b, test.report, test.width, test.color); err != nil {
				t.Fatal(err)
			}
			snapshottest.Golden(t, name, b.Bytes())
			if test.color {
				return
			}
			for line := range strings.Lines(b.String()) {
				line = strings.TrimSuffix(line, "\n")
				if n := utf8.RuneCountInString(line); n > 80 || strings.ContainsFunc(line, render.Unsafe) || strings.Contains(line, "…") {
					t.Errorf("%q is cut, unsafe or too long (%d columns)", line, n)
				}
			}
		})
	}
}

func TestWriteMany(t *testing.T) {
	var programs []*program
	for i := range maxShown + 3 {
		programs = append(programs, leaking(int64(i+1)))
	}
	var b bytes.Buffer
	if err := Write(&b, watch(Options{}, newWorld(programs...), 12, nil), 0, false); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(b.String(), "  STACK\n"); got != maxShown {
		t.Errorf("%d stacks shown, want %d", got, maxShown)
	}
	if !strings.Contains(b.String(), "\n3 stacks more, with less growth\n") {
		t.Errorf("the rest is not mentioned:\n%s", b.String())
	}
}

func TestWriteError(t *testing.T) {
	r, w := io.Pipe()
	full := errors.New("disk full")
	r.CloseWithError(full)
	if err := Write(w, &Report{}, 0, false); !errors.Is(err, full) {
		t.Errorf("Write returned %v, want %v", err, full)
	}
}

// Segments are whole where PyTorch has memory, and no sample is a tensor or cached.
func TestWholeSegments(t *testing.T) {
	kinds := func(labels ...snapshot.Labels) *snapshot.Snapshot {
		s := &snapshot.Snapshot{}
		for _, l := range labels {
			s.Samples = append(s.Samples, snapshot.Sample{Labels: l})
		}
		return s
	}
	segment, other := snapshot.Labels{Kind: "device", Owner: "pytorch"}, snapshot.Labels{Kind: "device", Owner: "jax"}
	tensor, cached := snapshot.Labels{Kind: "tensor", Owner: "pytorch"}, snapshot.Labels{Kind: "cached", Owner: "pytorch"}
	for _, test := range []struct {
		samples *snapshot.Snapshot
		want    bool
	}{
		{kinds(), false}, {kinds(other), false}, {kinds(other, segment), true},
		{kinds(segment, tensor), false}, {kinds(cached, segment), false},
	} {
		if got := wholeSegments(test.samples); got != test.want {
			t.Errorf("%+v: %v, want %v", test.samples.Samples, got, test.want)
		}
	}
}
