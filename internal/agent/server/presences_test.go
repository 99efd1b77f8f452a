package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// holds adds to totals what a process of a user holds on a GPU.
func holds(t *state.Totals, pid int, name, user, gpu string, bytes int64) {
	t.Accounts = append(t.Accounts, snapshot.Account{PID: pid, Process: name, GPU: gpu, Total: bytes})
	t.Processes = append(t.Processes, snapshot.Process{PID: pid, Name: name, Who: snapshot.Who{User: user}})
}

// However many processes come and go, the history has a bounded number of them, no byte is
// lost, and a user with few keeps them.
func TestPresencesAreBounded(t *testing.T) {
	h := noting()
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
	if n := len(h.presences.all); n > maxPresences+maxOthers+1 || len(h.presences.at)+len(h.presences.known) > 2*n || h.lost.Counters()[lossPresences].Value == 0 {
		t.Errorf("%d processes, %v", n, h.lost.Counters())
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
