package server

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// The parts of a bar are of what is held, of what NVML said in one reading to be others',
// and of what is left; where that is not known the bar says that it is about so.
func TestParts(t *testing.T) {
	known := func(rest int64) *state.Totals {
		return &state.Totals{GPUs: []state.GPUFigures{{GPUMemory: snapshot.GPUMemory{GPU: "0"}, Residual: rest, ResidualKnown: true}}}
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

// Groups of processes have the sums of all, those that hold most first, and rows as far as
// there is room.
func TestGroups(t *testing.T) {
	var all []listed
	add := func(n int, who snapshot.Who, held int64, gpu string) {
		for range n {
			all = append(all, listed{Process: live.Process{Process: snapshot.Process{PID: 100 + len(all), Name: "python3", Who: who, Inuse: held}, Held: held, Known: true, GPUs: []string{gpu}}})
		}
	}
	add(1, snapshot.Who{User: "ada", Namespace: "research", Pod: "train-0"}, 1000, "1")
	add(2, snapshot.Who{User: "bob", Namespace: "web", Pod: "train-0"}, 600, "0")
	add(1, snapshot.Who{User: "ada"}, 100, "0")
	add(shownProcesses, snapshot.Who{User: "crowd\x1b"}, 1, "0")
	for by, want := range map[string]string{
		"":     " 204",
		"user": "bob 2 1.2 KiB 0, ada 2 1.1 KiB 0, 1, crowd\\x1b 200 200 B 0",
		"pod":  "web/train-0 2 1.2 KiB 0, research/train-0 1 1000 B 1, no pod known 201 300 B 0",
	} {
		groups, more := groupsOf(all, by, nil)
		var got []string
		rows := 0
		for _, g := range groups {
			if by == "" {
				got = append(got, fmt.Sprintf("%s %d", g.Name, g.Count))
			} else {
				got = append(got, fmt.Sprintf("%s %d %s %s", g.Name, g.Count, g.Sum.Held, g.Sum.GPUs))
			}
			rows += len(g.Processes)
		}
		if strings.Join(got, ", ") != want || rows != shownProcesses || more != 4 {
			t.Errorf("by %q: %q with %d rows and %d more, want %q", by, got, rows, more, want)
		}
	}
	if got, want := groupingsOf(all, "job"), []option{{"user", "user"}, {"pod", "pod"}, {"job", "job"}}; !slices.Equal(got, want) {
		t.Errorf("by %q, want %q", got, want)
	}
	if _, err := (params{"by": "secret"}).grouping(); err == nil {
		t.Error("any grouping is taken")
	}
}

// A stack's row names the object that holds most of its memory, if one is known.
func TestStackHolder(t *testing.T) {
	l := &live.Snapshot{}
	l.Snapshot, l.Sites = livetest.Sized(0, "a", 10<<20, 20<<20)
	l.Snapshot.Samples[1].Holder = "cache[\"<b>\"]"
	var text [2]string
	for i, x := range live.NewTracker().Add(l).Stacks {
		var b strings.Builder
		if err := html.Write(&b, stackRow(stackViewOf(x))); err != nil {
			t.Fatal(err)
		}
		text[i] = b.String()
	}
	if strings.Contains(text[0], "held by") || !strings.Contains(text[1], "held by cache[") || strings.Contains(text[1], "<b>") {
		t.Errorf("%q", text)
	}
}
