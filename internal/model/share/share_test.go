package share

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// A holder is a process of a test, with all that it holds of one table.
type holder struct {
	Share[*holder]
	name  string
	given int
}

func newTable(max int) *Table[*holder] {
	return New(max, func(h *holder, n int) {
		h.given += n
		h.AddLost(n)
		h.Add(-n)
	})
}

func join(t *Table[*holder], name string, user int) *holder {
	h := &holder{name: name}
	t.Join(&h.Share, h)
	if user >= 0 {
		h.SetUser(uint32(user))
	}
	return h
}

// ask has h ask for n entries, and returns how many it got.
func ask(h *holder, n int) (got int) {
	for range n {
		if h.Room(1) {
			h.Add(1)
			got++
		} else {
			h.AddLost(1)
		}
	}
	return got
}

func TestOneHolderMayHaveAll(t *testing.T) {
	table := newTable(1000)
	h := join(table, "alone", -1)
	if got := ask(h, 1500); got != 1000 || h.given != 0 || h.Lost() != 500 {
		t.Errorf("got %d entries, gave %d back, lost %d", got, h.given, h.Lost())
	}
	h.Add(-1)
	if got := ask(h, 2); got != 1 {
		t.Errorf("got %d of 1 free entry", got)
	}
}

// Who holds most gives entries back, nobody else does, and what it gave back is not
// its own to take again.
func TestBiggestGivesBack(t *testing.T) {
	for _, users := range []bool{true, false} {
		t.Run(fmt.Sprint("users ", users), func(t *testing.T) {
			user := func(id int) int {
				if users {
					return id
				}
				return -1
			}
			table := newTable(1000)
			hog, old, late := join(table, "hog", user(1)), join(table, "old", user(2)), join(table, "late", user(3))
			ask(old, 200)
			ask(hog, 2000)
			for i := range 300 {
				if got := ask(late, 1); got != 1 {
					t.Fatalf("the newcomer was refused entry %d", i)
				}
				ask(hog, 5)
			}
			if old.given != 0 || late.given != 0 || late.Lost() != 0 || hog.given == 0 {
				t.Errorf("given back: old %d, late %d, hog %d", old.given, late.given, hog.given)
			}
			if table.Len() > 1000 || hog.Len() < 300 {
				t.Errorf("%d entries in all, the hog has %d", table.Len(), hog.Len())
			}
			// As soon as there is much room again, the hog may have it.
			late.Leave()
			hog.Add(-200)
			if got := ask(hog, 400); got != 400 {
				t.Errorf("after the others left the hog got %d of 400", got)
			}
		})
	}
}

// Many processes of one user share what that user has.
func TestManyProcessesOfOneUser(t *testing.T) {
	table := newTable(10_000)
	var strangers []*holder
	for i := range 1000 {
		strangers = append(strangers, join(table, fmt.Sprint("stranger", i), 7))
	}
	mine := join(table, "mine", 8)
	ask(mine, 1000)
	for range 30 {
		for _, h := range strangers {
			ask(h, 1)
		}
	}
	if got := ask(mine, 4000); got != 4000 || mine.given != 0 {
		t.Errorf("got %d of 4000, and gave back %d, beside 1000 processes of another user", got, mine.given)
	}
	// Of one user's processes the newcomer gets its part too.
	fresh := join(table, "fresh", 7)
	if got := ask(fresh, 3); got != 3 {
		t.Errorf("a new process of the stranger got %d of 3", got)
	}
	held := 0
	for _, h := range strangers {
		held += h.Len()
		h.Leave()
	}
	if held < 3000 {
		t.Errorf("the strangers have %d entries left", held)
	}
	if got := ask(mine, 4900); got != 4900 {
		t.Errorf("after the strangers left, got %d of 4900", got)
	}
}

// A process whose user is told late counts with that user's others from then on.
func TestUserIsToldLate(t *testing.T) {
	table := newTable(100)
	a, b, c := join(table, "a", -1), join(table, "b", -1), join(table, "c", 9)
	ask(a, 40)
	ask(b, 40)
	ask(c, 20)
	a.SetUser(1)
	b.SetUser(1)
	if len(table.all) != 2 || table.Len() != 100 {
		t.Fatalf("%d users, %d entries", len(table.all), table.Len())
	}
	if got := ask(c, 20); got != 20 || c.given != 0 {
		t.Errorf("got %d of 20", got)
	}
}

// A user with more processes than entries of its share is no reason to refuse others.
func TestManySmallProcesses(t *testing.T) {
	table := newTable(100)
	for i := range 200 {
		ask(join(table, fmt.Sprint(i), 1), 1)
	}
	if got := ask(join(table, "late", 2), 40); got != 40 {
		t.Errorf("got %d of 40", got)
	}
}

// A full table of which nobody has more than one entry refuses, and does not look
// through all holders each time.
func TestNobodyHasTooMuch(t *testing.T) {
	table := newTable(100)
	for i := range 100 {
		ask(join(table, fmt.Sprint(i), -1), 1)
	}
	h := join(table, "late", -1)
	if got := ask(h, 10); got != 0 {
		t.Errorf("got %d", got)
	}
	if !table.known || table.level != 0 {
		t.Error("it looks for a level at each call")
	}
}

// Whatever happens, counts are right, the table is never too full, and who has
// less than a fair share of what all want is never refused.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		size := 1 + r.IntN(200)
		table := newTable(size)
		var all []*holder
		for step := range 2000 {
			at := fmt.Sprintf("round %d, step %d", round, step)
			switch {
			case len(all) == 0 || len(all) < 12 && r.IntN(40) == 0:
				all = append(all, join(table, at, r.IntN(4)-1))
			case r.IntN(100) == 0:
				i := r.IntN(len(all))
				all[i].Leave()
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
			case r.IntN(100) == 0:
				all[r.IntN(len(all))].SetUser(uint32(r.IntN(3)))
			case r.IntN(4) == 0:
				if h := all[r.IntN(len(all))]; h.Len() > 0 {
					h.Add(-1 - r.IntN(h.Len()))
				}
			default:
				h := all[r.IntN(len(all))]
				for range 1 + r.IntN(size) {
					before := h.given
					if !h.Room(1) {
						if fair := size / len(table.all) / len(h.user.all) / 2; h.Len() < fair {
							t.Fatalf("%s: %d of %d entries, %d users, %d processes of its user: refused", at, h.Len(), size, len(table.all), len(h.user.all))
						}
						break
					}
					if h.given != before {
						t.Fatalf("%s: it gave its own entries back", at)
					}
					h.Add(1)
				}
			}
			held, users := 0, map[*user[*holder]]int{}
			for _, h := range all {
				held += h.Len()
				users[h.user] += h.Len()
			}
			if held != table.Len() || held > size || len(users) != len(table.all) {
				t.Fatalf("%s: %d entries counted as %d, of %d; %d users as %d", at, held, table.Len(), size, len(users), len(table.all))
			}
			for u, n := range users {
				if u.n != n {
					t.Fatalf("%s: a user has %d entries, counted as %d", at, n, u.n)
				}
			}
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	table := newTable(1 << 20)
	h := join(table, "one", 1)
	for b.Loop() {
		if h.Room(1) {
			h.Add(1)
		}
		h.Add(-1)
	}
}
