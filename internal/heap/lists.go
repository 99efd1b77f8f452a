package heap

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// maxInterpreters bounds how many interpreters of a process are looked at.
const maxInterpreters = 64

// interpreters returns the addresses of the interpreters.
func (r *objectReader) interpreters() []uint64 {
	var found []uint64
	for at := r.mem.word(r.runtime + uint64(r.lay.interpreters)); at != 0 && len(found) < maxInterpreters; at = r.mem.word(at + uint64(r.lay.nextInterpreter)) {
		if slices.Contains(found, at) {
			break
		}
		found = append(found, at)
	}
	if r.lay.minor == 8 && len(found) > 1 {
		found = found[:1] // all share one collector
	}
	return found
}

// A listReader follows the lists of the garbage collector: they have all objects that may
// refer to others.
type listReader struct {
	*objectReader
	interpreters []uint64
	most         int // objects
}

// A seen object is one that a list led to, with what is beside the list's pointers.
type seen struct {
	address uint64
	class   uint32 // index of the type, or noType
	count   uint32 // references to it, by its own count
}

// The reader reads a list again if it was cut short, or if the collector changed it in
// between: walkTries times. Before that it waits for the collector: workTries pauses.
const (
	walkTries   = 4
	workTries   = 300
	walkPause   = 3 * time.Millisecond
	oldestCount = 24 // before the flag: how often the collector had all objects
)

// find returns the objects of all interpreters. Some may be there more than once: the last one
// is the newest.
func (r *listReader) find() []seen {
	found := room[seen](r.arena, firstSeen)[:0]
	for _, interpreter := range r.interpreters {
		if r.lay.minor == 8 {
			interpreter = r.runtime // the collector is not an interpreter's
		}
		for try := 1; ; try++ {
			works, count := r.collector(interpreter)
			for i := 0; works && i < workTries && r.mem.check(); i++ {
				r.pause(walkPause)
				works, count = r.collector(interpreter)
			}
			cut := uint64(0)
			for _, head := range r.generations(interpreter) { // as objects go, from the youngest
				var ok bool
				if found, ok = r.wholeList(found, head); !ok {
					cut++
				}
			}
			works, after := r.collector(interpreter)
			if !works && count == after {
				r.lost.Add(listsCut, cut)
				break
			}
			if try == walkTries || !r.mem.check() || len(found) >= r.most {
				r.lost.Add(listsCut, max(cut, 1))
				break
			}
			// What both readings have is there once.
			sorting.Stable(found, func(a, b seen) int { return cmp.Compare(a.address, b.address) })
			found = slices.CompactFunc(found, func(a, b seen) bool { return a.address == b.address })
		}
	}
	if len(found) >= r.most {
		r.lost.Add(objectsLimit, 1)
	}
	return found
}

// collector returns whether a collector works, and how often it had all objects.
func (r *listReader) collector(interpreter uint64) (works bool, count uint64) {
	at := interpreter + uint64(r.lay.collecting)
	r.mem.forget()
	return r.mem.word(at)&(1<<32-1) != 0, r.mem.word(at - oldestCount)
}

// pause waits, unless the reading is over.
func (r *listReader) pause(d time.Duration) {
	select {
	case <-r.mem.done:
	case <-time.After(d):
	}
}

// wholeList appends the objects on one circular list. A list that was cut short is
// followed again: each object is in one of the readings.
func (r *listReader) wholeList(found []seen, head uint64) (_ []seen, ok bool) {
	for range walkTries {
		if found, ok = r.list(found, head); ok || !r.mem.check() || len(found) >= r.most {
			break
		}
		r.mem.forget()
	}
	return found, ok
}

// list appends the objects on one circular list, and tells whether it came back to
// where it began. An object that moves to another list leads there, and around it.
func (r *listReader) list(found []seen, head uint64) (_ []seen, ok bool) {
	at := r.link(head)
	mark, n, next := uint64(0), 0, 1024 // Brent's: an object that comes again was marked
	for at != head {
		if at < pageSize || at == mark || len(found) >= r.most || !r.mem.tick() {
			return found, false
		}
		if len(found) == cap(found) {
			found = resized(r.arena, found, 2*cap(found))
		}
		if n++; n == next {
			mark, next = at, 2*next
		}
		one := seen{address: at + gcHead, class: noType}
		b := r.mem.bytes(at, gcHead+16)
		if b == nil {
			found, at = append(found, one), r.link(at)
			continue
		}
		following, count, class := word(b)&^7, word(b[gcHead:]), word(b[gcHead+8:])
		one.count = uint32(count)
		if count>>32 != 0 && r.lay.minor < 12 { // more than anybody counts
			one.count = 1<<32 - 1
		}
		one.class = r.typeAt(class)
		found, at = append(found, one), following
	}
	return found, true
}

// firstSeen is how many objects there is room for at first.
const firstSeen = 1 << 18

// link returns the next of a circular list. Bits below the address are the collector's.
func (r *listReader) link(at uint64) uint64 { return r.mem.word(at) &^ 7 }

// generations returns the heads of an interpreter's lists.
func (r *listReader) generations(interpreter uint64) []uint64 {
	const size, count = 24, 3
	if r.lay.generations != 0 {
		first := interpreter + uint64(r.lay.generations)
		return []uint64{first, first + size, first + 2*size, first + count*size + 8}
	}
	// A head and the first and last of its list point at each other.
	var heads []uint64
	start := interpreter + uint64(r.lay.gc)
	for at := start; at < start+uint64(r.lay.gcSize); at += 8 {
		next, before := r.link(at), r.link(at+8)
		if next < pageSize || before < pageSize || r.link(next+8) != at || r.link(before) != at {
			continue
		}
		heads = append(heads, at)
		at += size - 8
	}
	return heads
}
