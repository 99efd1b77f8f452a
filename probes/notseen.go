package probes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A process may map a library that has no probes. Whoever asks what is traced hears of
// it (NotSeen), and it is looked at again until it has them.

const (
	// maxUnseen bounds the processes of one user that are remembered.
	maxUnseen = 256
	// againInterval is how long such a process is left alone.
	againInterval = 10 * time.Second
	// maxAgain bounds the processes of one user that are looked at again at one time.
	maxAgain = 2
)

// An absence is why a process is not seen, or not in full.
type absence string

const (
	noSlot     absence = "no free slot for a library"
	waitsLong  absence = "too many of its user's libraries wait"
	noAnswer   absence = "a library's file does not answer"
	notTarget  absence = "the table of processes is full"
	unreadable absence = "its libraries could not be looked at"
)

// unseen is a process that maps a library without probes.
type unseen struct {
	why   absence
	at    time.Duration // when it mapped the library: CLOCK_MONOTONIC
	again time.Time     // when to look at it again
}

// miss says that a process, which mapped a library at the moment at, is not seen.
func (l *attachments) miss(pid int, uid uint32, why absence, at time.Duration, now time.Time) {
	m := l.process(pid, uid)
	switch u := l.user(uid); {
	case m.unseen != nil:
		at = max(at, m.unseen.at)
	case u.unseen >= maxUnseen:
		u.more = true
		l.forget(pid)
		return
	default:
		u.unseen++
	}
	m.unseen = &unseen{why, at, now.Add(againInterval)}
}

// see says that all libraries of a process have probes.
func (l *attachments) see(pid int) {
	m := l.processes[pid]
	if m == nil || m.unseen == nil {
		return
	}
	m.unseen = nil
	if u := l.user(m.user); u.unseen > 0 {
		u.unseen--
		u.more = u.more && u.unseen > 0
	}
	l.forget(pid)
}

// NotSeen are processes of one user that map a library of CUDA's and are not traced, or
// not in full.
type NotSeen struct {
	User      uint32
	Why       string
	Processes int
	More      bool // there are more of this user
}

// String says it in a few words.
func (n NotSeen) String() string {
	text := fmt.Sprintf("%d processes", n.Processes)
	if n.Processes == 1 {
		text = "1 process"
	}
	if n.More {
		text = "more than " + text
	}
	return fmt.Sprintf("%s of user %s: %s", text, n.Name(), n.Why)
}

// Name names the user by number, and all those who are not told apart as others.
func (n NotSeen) Name() string {
	if n.User == others {
		return "others"
	}
	return strconv.FormatUint(uint64(n.User), 10)
}

// NotSeen returns which processes are not seen, of one user after the other.
func (t *Tracer) NotSeen() (out []NotSeen) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := map[NotSeen]int{}
	for _, m := range t.libs.processes {
		if m.unseen == nil {
			continue
		}
		key := NotSeen{User: m.user, Why: string(m.unseen.why)}
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			key.More = t.libs.user(m.user).more
			out = append(out, key)
		}
		out[i].Processes++
	}
	slices.SortFunc(out, func(a, b NotSeen) int {
		if a.User != b.User {
			return int(int64(a.User) - int64(b.User))
		}
		return b.Processes - a.Processes
	})
	return out
}

// missed says that a library of a process has no probes, and counts it.
func (t *Tracer) missed(c claim, why absence) {
	t.loss.Add(lossNotProbed, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.libs.miss(c.pid, c.user, why, c.at, time.Now())
}

// lookAgain has the processes looked at again whose time has come, some of each user.
func (t *Tracer) lookAgain(now time.Time) {
	n := map[uint32]int{}
	var claims []claim
	t.mu.Lock()
	for pid, m := range t.libs.processes {
		if m.unseen != nil && !now.Before(m.unseen.again) && n[m.user] < maxAgain {
			n[m.user]++
			m.unseen.again = now.Add(againInterval)
			claims = append(claims, claim{pid: pid, user: m.user, at: m.unseen.at, only: t.confinedTo(pid), again: true})
		}
	}
	t.mu.Unlock()
	for _, c := range claims {
		t.work.Do(c.user, func() { t.lookAt(c) }, func() {})
	}
}

// lookAt looks at a process again.
func (t *Tracer) lookAt(c claim) {
	var err error
	if c.only == 0 && t.opts.All {
		err = t.target(c.pid)
	}
	if err == nil {
		_, err = t.probe(c)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist), errors.Is(err, ErrNoSymbols), errors.Is(err, proc.ErrRemapped):
		t.libs.see(c.pid)
	case t.libs.processes[c.pid] != nil:
		t.libs.miss(c.pid, c.user, absent(err), c.at, time.Now())
	}
}

// absent returns why an error has a process not seen.
func absent(err error) absence {
	if errors.Is(err, errNotProbed) {
		return noSlot
	}
	return unreadable
}

const (
	// maxWarnings bounds the warnings about one user's processes and libraries that
	// are given in a row, and warnInterval is the time after which there may be one more.
	maxWarnings  = 8
	warnInterval = 10 * time.Minute
)

// A budget is what warnings may still be given. The zero value is a full one.
type budget struct {
	used  int
	since time.Time // since when none of them was given back
}

func (b *budget) refill(now time.Time) {
	back := int(now.Sub(b.since) / warnInterval)
	if b.used = max(0, b.used-back); b.used == 0 {
		b.since = now
		return
	}
	b.since = b.since.Add(time.Duration(back) * warnInterval)
}

// take takes one, and tells whether there was one, and whether it was the last.
func (b *budget) take(now time.Time) (ok, last bool) {
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

// warnOf warns of something that processes of a user chose, as often as they like.
func (t *Tracer) warnOf(uid uint32, text string) {
	t.mu.Lock()
	ok, last := false, false
	if !t.warned[text] {
		ok, last = t.libs.user(uid).warnings.take(time.Now())
	}
	t.mu.Unlock()
	if !ok {
		return
	}
	if last {
		text += fmt.Sprintf(" (further warnings about libraries of user %d are left out for a while)", uid)
	}
	t.warn(text)
}
