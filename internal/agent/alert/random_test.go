package alert

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// Whatever happens, of each rule and subject it is told in turn that it is so and that it is
// so no more, what fires is what was told last, and an amount that is told is as the rule
// has it.
func TestRandom(t *testing.T) {
	simple := map[string]Subject{
		"gpu.used > 50%": {GPU: "0"}, "gpu.used > 30GiB for 3m": {GPU: "0"},
		"process.live > 40GiB": {PID: 7, Process: "train"}, "process.held > 20GiB for 2m": {PID: 7, Process: "train"},
	}
	texts := []string{"oom", "gpu.used > 50%", "gpu.used > 30GiB for 3m", "process.live > 40GiB", "process.held > 20GiB for 2m"}
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
		var past []moment
		at, used, live := time.Duration(0), 50*gib, 20*gib
		var failures []state.FailureSummary
		for i := range 300 {
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
				failures = append(failures, state.FailureSummary{Number: int64(1 + len(failures)), PID: rng.IntN(3), GPU: "0"})
			}
			m.Latest = failures
			m.Meta.Duration = at
			past = append(past, moment{at, m})
			for _, a := range w.Observe(at, m) {
				k := of{a.Rule, a.Subject}
				if firing[k] != a.Resolved {
					t.Fatalf("seed %d: told %+v while firing is %t", seed, a, firing[k])
				}
				r := byText[a.Rule]
				if !a.Resolved && r.what != nil && a.Value <= a.Limit {
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
			for r, s := range simple {
				if i%15 != 14 {
					break // it takes long
				}
				if k := (of{r, s}); firing[k] != fires(byText[r], s, past) {
					t.Fatalf("seed %d, %v: %v fires: %t", seed, at, k, firing[k])
				}
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

// A moment is one look.
type moment struct {
	at time.Duration
	*state.Totals
}

// fires reports whether a rule about one subject fires after so many looks, in the words of
// the package comment, of all of them anew.
func fires(r Rule, s Subject, past []moment) (firing bool) {
	type value struct {
		at time.Duration
		so bool
	}
	var known []value // without a gap of which the rule knows
	steady := 0       // the first of known of which all later ones are as the last, and not the state
	for i, p := range past {
		j := slices.IndexFunc(r.what.measures(&look{Totals: p.Totals}), func(m measure) bool { return m.Subject == s })
		if j < 0 {
			if s.PID != 0 || len(known) > 0 && p.at-known[len(known)-1].at >= 5*time.Minute {
				known, firing = nil, false
			}
			if !firing {
				steady = len(known)
			}
			continue
		}
		m := r.what.measures(&look{Totals: past[i].Totals})[j]
		limit := r.limit(m.whole)
		known = append(known, value{at: p.at})
		last := &known[len(known)-1]
		wait := r.window
		if last.so = m.is > limit; firing {
			last.so, wait = m.is > limit-limit/20, 5*time.Minute
		}
		if last.so == firing {
			steady = len(known)
		} else if steady = min(steady, len(known)-1); p.at-known[steady].at >= wait {
			firing, steady = !firing, len(known)
		}
	}
	return firing
}
