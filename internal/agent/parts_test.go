package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/push"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/workload"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A made part counts one loss, and ends when it is told to.
type made struct{ node string }

func (made) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (made) Loss() []loss.Counter { return []loss.Counter{{Name: "lost", Value: 1}} }

// A part is made afresh when one of its settings changes, and only then; one that cannot
// be is as it was, in the settings too, so that it is tried again; counters never fall.
func TestSlot(t *testing.T) {
	var nodes, said []string
	s := &slot{name: "part", settings: []string{"node"}, warn: func(text string) { said = append(said, text) }}
	s.open = func(c *settings.Config) (runner, error) {
		nodes = append(nodes, c.Node)
		switch c.Node {
		case "bad":
			return nil, errors.New("that is bad")
		case "none":
			return nil, nil
		}
		return made{c.Node}, nil
	}
	lost := func(want uint64) {
		t.Helper()
		if got := s.Loss(); len(got) != 1 || got[0].Value != want {
			t.Errorf("%v, want %d", got, want)
		}
	}
	config := settings.New()
	reload := func(node, listen string) {
		next := *config
		next.Node, next.PushHeaderFile = node, listen
		merged, change := settings.Merge(config, &next)
		s.restart(config, merged, change.Applied)
		config = merged
	}
	if err := s.start(config); err != nil {
		t.Fatal(err)
	}
	lost(1)
	reload("", "/other")
	reload("a", "/other")
	lost(2)
	reload("bad", "/more")
	if config.Node != "a" || config.PushHeaderFile != "/more" || !s.runs() {
		t.Errorf("%+v, runs %v", config, s.runs())
	}
	lost(3)
	reload("bad", "/more")
	lost(4)
	reload("none", "/more")
	if s.runs() {
		t.Error("there is one still")
	}
	lost(4)
	reload("b", "/more")
	s.end()
	s.end()
	lost(5)
	if want := []string{"", "a", "bad", "a", "bad", "a", "none", "b"}; !slices.Equal(nodes, want) {
		t.Errorf("made with %q, want %q", nodes, want)
	}
	if want := []string{"part stays as it was: that is bad", "part stays as it was: that is bad"}; !slices.Equal(said, want) {
		t.Errorf("said %q", said)
	}
}

// A sample of a profile that is asked for has the labels that the series of a pushed one
// has, cleaned and bounded likewise, but for the PID.
func TestSampleLabels(t *testing.T) {
	a := &agent{finder: workload.New(nil)}
	defer a.finder.Close()
	c := settings.New()
	c.Node = "node7"
	p := snapshot.Process{PID: 7, Name: "a\nb", Who: snapshot.Who{Service: "llm", User: "ada", Pod: "train-0"}}
	got := a.sampleLabels(c)(&p)
	if want := map[string]string{"node": "node7", "process": `a\x0ab`, "service_name": "llm", "user": "ada", "pod": "train-0"}; !maps.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	series := push.SeriesLabels("node7", &p.Who, p.Name, p.PID)
	for _, l := range series {
		if l.Name != "pid" && got[l.Name] != l.Value {
			t.Errorf("%s is %q, and %q where it is pushed", l.Name, got[l.Name], l.Value)
		}
	}
	if len(got) != len(series)-1 {
		t.Errorf("%q, pushed %q", got, series)
	}
}

// Each part is made with settings that can change while the agent runs.
func TestSlotSettings(t *testing.T) {
	a := &agent{}
	for _, s := range []*slot{a.webhookSlot(), a.serverSlot(), a.pushSlot()} {
		for _, name := range s.settings {
			if !slices.ContainsFunc(settings.New().Table(), func(x *settings.Setting) bool { return x.Name == name && !x.Fixed }) {
				t.Errorf("%s is made with %s, which is no setting that changes", s.name, name)
			}
		}
	}
}
