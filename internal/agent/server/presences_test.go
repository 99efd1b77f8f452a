package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// holds adds to totals what a process of a user holds on a GPU.
func holds(t *state.Totals, pid int, name, user, gpu string, bytes int64) {
	t.Accounts = append(t.Accounts, snapshot.Account{PID: pid, Process: name, GPU: gpu, Total: bytes})
	t.Processes = append(t.Processes, snapshot.Process{PID: pid, Name: name, Who: snapshot.Who{User: user}})
}

// What processes and users held most in a period is that of one moment, over all GPUs, and
// those that are gone are there.
func TestHoldings(t *testing.T) {
	var h history
	at := func(second int, add func(*state.Totals)) {
		x := totals(time.Duration(second) * time.Second)
		add(x)
		h.take(x)
	}
	at(0, func(x *state.Totals) { holds(x, 9, "before", "ada", "0", 999) })
	at(10, func(x *state.Totals) {
		holds(x, 1, "a", "ada", "0", 50)
		holds(x, 1, "a", "ada", "1", 10)
		holds(x, 2, "b", "bob", "0", 40)
	})
	at(11, func(x *state.Totals) { // a name that is learned late, and the other process of ada's
		holds(x, 1, "a2", "ada", "0", 30)
		holds(x, 3, "c", "ada", "0", 25)
	})
	at(12, func(x *state.Totals) { holds(x, 2, "b2", "carl", "0", 7) }) // another process with the PID
	for _, c := range []struct {
		chosen
		want, groups string
	}{
		{chosen{}, "a2 60 0,1; b 40 0; c 25 0; b2 7 0", "a2 (1) 60, b (2) 40, b2 (2) 7, c (3) 25"},
		{chosen{by: "user"}, "a2 60 0,1; b 40 0; c 25 0; b2 7 0", "ada 60, bob 40, carl 7"},
		{chosen{by: "user", filter: filter{gpu: "0"}}, "a2 50 0; b 40 0; c 25 0; b2 7 0", "ada 55, bob 40, carl 7"},
		{chosen{filter: filter{pid: 1}}, "a2 60 0,1", "a2 (1) 60"},
	} {
		all, peaks := h.holdings(&c.chosen, noted.Add(5*time.Second), noted.Add(time.Minute))
		var got, groups []string
		for _, x := range all {
			got = append(got, fmt.Sprintf("%s %d %s", x.Name, x.Held, strings.Join(x.GPUs, ",")))
		}
		for name, bytes := range peaks {
			groups = append(groups, fmt.Sprintf("%s %d", name, bytes))
		}
		slices.Sort(groups)
		if strings.Join(got, "; ") != c.want || strings.Join(groups, ", ") != c.groups {
			t.Errorf("%+v: %q and %q, want %q and %q", c.chosen, got, groups, c.want, c.groups)
		}
	}
	there := []live.Process{{Process: snapshot.Process{PID: 1, Name: "a2"}, Held: 3}}
	all, _ := h.holdings(&chosen{}, noted.Add(5*time.Second), noted.Add(time.Minute))
	got := rows(there, all, noted.Add(time.Minute))
	if len(got) != 4 || got[0].peak != 60 || got[0].Exited || got[1].Held != 0 || !got[1].Exited || got[1].until != "03:04:10 UTC" {
		t.Errorf("%+v", got)
	}
	if x, most := h.peak(filter{pid: 1}, noted, noted.Add(time.Minute)); most != 60 || x.of(filter{1, "1"}) != 10 {
		t.Errorf("the peak is %d of %+v", most, x)
	}
}

// However many processes come and go, the history has a bounded number of them, no byte is
// lost, and a user with few keeps them.
func TestPresencesAreBounded(t *testing.T) {
	var h history
	const notes = 3 * maxPresences
	for i := range notes {
		x := totals(time.Duration(i) * time.Second)
		if i == 0 {
			holds(x, 1, "once", "ada", "0", 1000)
		}
		holds(x, 10+i, "short", "crowd", fmt.Sprint("cuda:", i), 1) // on a GPU that is not there
		for j := range maxStakes {
			holds(x, 1_000_000+j, "many", "crowd", "1", int64(10+j))
		}
		h.take(x)
	}
	if n := len(h.presences.all); n > maxPresences+maxOthers+1 || len(h.presences.at)+len(h.presences.known) > 2*n || h.presences.folded == 0 {
		t.Errorf("%d processes, %d folded", n, h.presences.folded)
	}
	d := h.since(-1)
	on := map[int64]namedPresence{}
	for _, x := range d.Processes {
		on[x.ID] = x
	}
	var held []stake
	for i, p := range d.Points {
		if p.Held != nil {
			held = *p.Held
		}
		sum, want, ada := int64(0), int64(1+maxStakes*10+maxStakes*(maxStakes-1)/2), int64(0)
		for _, s := range held {
			x, known := on[s[0]]
			if !known {
				t.Fatalf("note %d has the process %d, which nobody knows", i, s[0])
			}
			if sum += s[1]; x.User == "ada" {
				ada += s[1]
			}
		}
		if i == 0 {
			want += 1000
			if ada != 1000 {
				t.Errorf("ada held %d", ada)
			}
		}
		if sum != want {
			t.Fatalf("note %d has %d bytes, want %d", i, sum, want)
		}
	}
	// What stays as it is takes no memory.
	a, b := h.fine[len(h.fine)-1], totals(notes*time.Second)
	for j := range maxStakes {
		holds(b, 1_000_000+j, "many", "crowd", "1", int64(10+j))
	}
	h.take(b)
	b = totals((notes + 1) * time.Second)
	for j := range maxStakes {
		holds(b, 1_000_000+j, "many", "crowd", "1", int64(10+j))
	}
	h.take(b)
	if last := h.fine[len(h.fine)-2:]; !sameStakes(last[0].held, last[1].held) || sameStakes(a.held, last[0].held) {
		t.Error("equal notes have a slice each")
	}
}
