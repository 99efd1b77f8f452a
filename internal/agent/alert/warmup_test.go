package alert

import (
	"cmp"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

const recordings = "../../../test/recordings/"

// documented returns the rules of the table in docs/agent.md.
func documented(t *testing.T) (out []Rule) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| (`[^|]*`) \\| [^|]+ \\|$")
	rule := regexp.MustCompile("`([^`]+)`")
	table := regexp.MustCompile(`(?s)\| rule \| reports \|.*?\n\n`).FindString(string(text))
	for _, cells := range row.FindAllStringSubmatch(table, -1) {
		for _, text := range rule.FindAllStringSubmatch(cells[1], -1) {
			out = append(out, parsed(t, text[1]))
		}
	}
	if len(out) < 10 {
		t.Fatalf("%d rules are documented", len(out))
	}
	return out
}

// Real programs start on NVIDIA H200s, as if that took ten minutes, and go on with what they
// hold then. No documented rule about growth is true of them.
func TestRealStartsAreNoGrowth(t *testing.T) {
	var rules []Rule
	for _, r := range documented(t) {
		if r.grows && !r.what.counts {
			rules = append(rules, r)
		}
	}
	for _, text := range []string{"process.live grows 10MiB in 10m", "process.held grows 10MiB in 10m", "owner.live grows 10MiB in 20m", "gpu.used grows 10MiB in 20m", "gpu.held grows 10MiB in 20m"} {
		rules = append(rules, parsed(t, text))
	}
	for _, name := range []string{"accelerate", "fsdp", "jax", "nccl", "pools", "torch_native", "allocator/bert", "allocator/peft_8"} {
		w := NewWatch(rules)
		all := looks(t, recordings+name+".gmt")
		most := slices.MaxFunc(all, func(a, b *state.Totals) int { return cmp.Compare(held(a), held(b)) })
		if held(most) < 1e8 {
			t.Errorf("%s holds %d bytes", name, held(most))
		}
		at := time.Duration(0)
		look := func(m *state.Totals) {
			for _, a := range w.Observe(at, m) {
				t.Errorf("%s at %v: %s", name, at, a.Text)
			}
		}
		for _, m := range all[:slices.Index(all, most)] {
			if of := time.Duration(float64(m.Meta.Duration) / float64(most.Meta.Duration) * float64(10*time.Minute)); of >= at+5*time.Second {
				at = of
				look(m)
			}
		}
		for range 600 {
			at += 10 * time.Second
			look(most)
		}
	}
}

// held is what all processes hold.
func held(t *state.Totals) (sum int64) {
	for i := range t.Uses {
		sum += t.Uses[i].Live
	}
	return sum
}

// looks are the totals of a recording at some of its moments.
func looks(t *testing.T, path string) (out []*state.Totals) {
	t.Helper()
	r, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := state.New()
	for n := 1; ; n++ {
		x, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if s.Apply(x); n%200 == 0 {
			out = append(out, s.View(state.Want{Totals: true}).Totals())
		}
	}
	return append(out, s.View(state.Want{Totals: true}).Totals())
}
