package probes

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

const (
	// maxWarned bounds the warnings that are remembered, so that they come once.
	maxWarned = 1000
	// maxWarnings bounds the warnings about one user's processes in a row. There may be one
	// more after each warnInterval.
	maxWarnings  = 8
	warnInterval = 10 * time.Minute
	// maxUsers bounds the users with a budget of their own. The others share one.
	maxUsers = 4096
)

// others stands for all users beyond a bound, and for the user of a process that cannot be read. No
// user has this number.
const others = 1<<32 - 1

// warnings passes each warning on once, and limits those that one user can cause.
type warnings struct {
	warn func(string) // may be nil

	mu      sync.Mutex
	given   map[string]bool
	budgets map[uint32]*budget // by user
}

func newWarnings(warn func(string)) *warnings {
	return &warnings{warn: warn, given: map[string]bool{}, budgets: map[uint32]*budget{}}
}

func (w *warnings) add(text string) {
	w.mu.Lock()
	again := w.given[text]
	if len(w.given) >= maxWarned {
		clear(w.given)
	}
	w.given[text] = true
	w.mu.Unlock()
	if !again && w.warn != nil {
		w.warn(text)
	}
}

// addFor adds a warning that processes of a user can cause as often as they like.
func (w *warnings) addFor(uid uint32, text string) {
	w.mu.Lock()
	ok, last := false, false
	if !w.given[text] {
		ok, last = w.budget(uid).spend(time.Now())
	}
	w.mu.Unlock()
	if !ok {
		return
	}
	if last {
		text += fmt.Sprintf(" (further warnings about libraries of %s are left out for a while)", tenant.Name(uid))
	}
	w.add(text)
}

// budget returns that of a user, or one that many users share.
func (w *warnings) budget(uid uint32) *budget {
	if w.budgets[uid] == nil && len(w.budgets) >= maxUsers {
		uid = others
	}
	return keyed.At(w.budgets, uid)
}

// tidy forgets the users with a full budget.
func (w *warnings) tidy(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, b := range w.budgets {
		if b.full(now) {
			delete(w.budgets, uid)
		}
	}
}

// A budget is the number of warnings that a user may still cause. The zero value is full.
type budget struct {
	used  int
	since time.Time // of the last refill
}

func (b *budget) refill(now time.Time) {
	back := int(now.Sub(b.since) / warnInterval)
	if b.used = max(0, b.used-back); b.used == 0 {
		b.since = now
		return
	}
	b.since = b.since.Add(time.Duration(back) * warnInterval)
}

// spend spends one. It returns whether there was one, and whether it was the last.
func (b *budget) spend(now time.Time) (ok, last bool) {
	b.refill(now)
	if b.used == maxWarnings {
		return false, false
	}
	b.used++
	return true, b.used == maxWarnings
}

func (b *budget) full(now time.Time) bool {
	b.refill(now)
	return b.used == 0
}

// join lists names, and counts those past the tenth.
func join(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
