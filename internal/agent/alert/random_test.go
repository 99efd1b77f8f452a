package alert

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// Whatever happens, of each rule and subject it is told in turn that it is so and that it is
// so no more, what fires is what was told last, and an amount that is told is as the rule
// has it.
func TestRandom(t *testing.T) {
	texts := []string{"oom", "gpu.used > 50%", "gpu.free <= 30GiB for 3m", "process.live > 40GiB", "process.held grows 5GiB in 7m", "owner.live grows 10GiB in 2m", "loss grows 5 in 1m", "residual < 10%", "loss >= 20"}
	type of struct {
		rule string
		Subject
	}
	fired, resolved := map[string]int{}, 0
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var rules []Rule
		byText := map[string]Rule{}
		for _, text := range texts {
			byText[text] = parsed(t, text)
			rules = append(rules, byText[text])
		}
		w := NewWatch(rules)
		firing := map[of]bool{}
		at, used, live := time.Duration(0), 50*gib, 20*gib
		var failures []state.LatestFailure
		for range 300 {
			at += time.Duration(1+rng.IntN(90)) * time.Second
			used = min(max(used+rng.Int64N(20*gib)-10*gib, 0), 100*gib)
			live = min(max(live+rng.Int64N(10*gib)-5*gib, 0), 100*gib)
			m := totals(used, live)
			if rng.IntN(20) == 0 {
				m.Processes, m.Uses, m.Accounts = nil, nil, nil
			}
			if rng.IntN(20) == 0 {
				m.GPUs[0].GPUMemory = snapshot.GPUMemory{GPU: "0"}
			}
			if rng.IntN(50) == 0 {
				failures = append(failures, state.LatestFailure{Number: int64(1 + len(failures)), PID: rng.IntN(3), GPU: "0"})
			}
			m.Latest = failures
			m.Meta.Duration = at
			for _, a := range w.Observe(at, m) {
				k := of{a.Rule, a.Subject}
				if firing[k] != a.Resolved {
					t.Fatalf("seed %d: told %+v while firing is %t", seed, a, firing[k])
				}
				r := byText[a.Rule]
				if !a.Resolved && r.what != nil && !r.holds(a.Value, a.Limit, 0) {
					t.Fatalf("seed %d: it is not so: %+v", seed, a)
				}
				if firing[k] = !a.Resolved; a.Resolved {
					delete(firing, k)
					resolved++
				} else {
					fired[a.Rule]++
				}
			}
			now := w.Firing()
			for _, a := range now {
				if !firing[of{a.Rule, a.Subject}] {
					t.Fatalf("seed %d: %+v fires and was not told", seed, a)
				}
			}
			if len(now) != len(firing) {
				t.Fatalf("seed %d: %d fire, %d were told", seed, len(now), len(firing))
			}
		}
	}
	for _, text := range texts {
		if fired[text] == 0 {
			t.Errorf("never told: %s", text)
		}
	}
	if resolved == 0 {
		t.Error("nothing was ever over")
	}
}
