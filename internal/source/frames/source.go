// Package frames turns the stacks that the kernel side took into records, and
// names what is in them: it is the source of stacks and of who processes are.
// What only a living process tells is read as soon as its stack comes; names
// are read from files that it keeps open, when somebody looks.
package frames

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// A Source tells stacks, names and processes. It is the probes.StackTaker of its
// trace.
type Source struct {
	*unwind.Taker
	sym    *symbolize.Symbolizer
	tell   func(record.Record)
	resend func(ids []uint64) // has the kernel side send stacks again
	queue  *queue
	places places // of the queue's goroutine
	lost   *loss.Set

	naming sync.Mutex // held while places are named

	mu      sync.Mutex
	reasons map[string]uint64 // incomplete stacks by reason
	users   map[int]uint16    // of the processes that had a job, until they end
}

const lossNotNamed = 0

var causes = []loss.Cause{
	lossNotNamed: loss.Of("stacks_not_named", "stacks whose names were not read because too many waited: the next event with one brings it again"),
}

// maxReasons bounds the reasons for incomplete stacks that are told.
const maxReasons = 100

// New returns a Source that tells its records to tell, from goroutines of its
// own.
func New(taker *unwind.Taker, tell func(record.Record)) *Source {
	return &Source{Taker: taker, sym: symbolize.New(symbolize.ConfigFromEnv()), tell: tell, queue: newQueue(taker.Options.Meter),
		places: newPlaces(), lost: loss.New(causes), reasons: map[string]uint64{}, users: map[int]uint16{}}
}

// Resend says how the kernel side is made to send stacks again. It is for before
// the first stack.
func (s *Source) Resend(resend func(ids []uint64)) { s.resend = resend }

// Mapped is of probes.StackTaker, as the next three.
func (s *Source) Mapped(pid int, m proc.Mapping, cuda bool) {
	s.sym.Invalidate(uint32(pid))
	s.Taker.Mapped(pid, m, cuda)
}

// Forked says that child began with the mappings of parent.
func (s *Source) Forked(parent, child int) {
	s.Taker.Forked(parent, child)
	s.mu.Lock()
	if user, known := s.users[parent]; known {
		s.users[child] = user
	}
	s.mu.Unlock()
	s.renew(child)
}

// Replaced says that pid replaced its image.
func (s *Source) Replaced(pid int) {
	s.Taker.Replaced(pid)
	s.renew(pid)
}

// Ended says that pid has ended.
func (s *Source) Ended(pid int) {
	s.Taker.Ended(pid)
	s.renew(pid)
	s.mu.Lock()
	delete(s.users, pid)
	s.mu.Unlock()
}

// userOf returns whose jobs those of a process are. They stay that user's as long as it
// runs, so that they are done in order.
func (s *Source) userOf(pid int) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	user, known := s.users[pid]
	if !known {
		if user = s.UserOf(pid); user != 0 {
			s.users[pid] = user
		}
	}
	return user
}

// renew makes the names of what comes of pid be looked up in its new mappings.
// Stacks of the old ones that still wait are looked up before.
func (s *Source) renew(pid int) {
	forget := func() { s.sym.Forget(uint32(pid)) }
	s.queue.add(s.userOf(pid), pid, forget, forget)
}

// Stack has a stack's frames read and told. Where there is no room the kernel
// side sends it again.
func (s *Source) Stack(st *probes.Stack) {
	one, pid := *st, int(st.Process.PID)
	one.Words = append([]uint64(nil), st.Words...)
	s.queue.add(s.userOf(pid), pid, func() {
		s.tell(&record.Stack{ID: one.ID, Process: one.Process, Frames: s.frames(&one)})
	}, func() {
		s.lost.Add(lossNotNamed, 1)
		s.resend([]uint64{one.ID})
		s.Invalidate(pid)
	})
}

// frames locates the frames of a stack, leaf first. The process must be there
// still, as far as its names are to be known.
func (s *Source) frames(st *probes.Stack) []*record.Place {
	pid := st.Process.PID
	if !s.Unwinds() {
		out := make([]*record.Place, len(st.Words))
		for i, pc := range st.Words {
			out[i] = s.places.native(s.sym.Locate(pid, pc, symbolize.Return))
		}
		return out
	}
	decoded := s.Decode(pid, st.Flags, st.Frames, st.Words)
	if decoded.Err != nil {
		s.incomplete(decoded.Err)
	}
	out := make([]*record.Place, 0, len(decoded.Frames)+1)
	for i, f := range decoded.Frames {
		if n := decoded.Truncated; n > 0 && i == decoded.TruncatedAt {
			out = append(out, s.places.line(snapshot.Line{Function: fmt.Sprintf("[truncated: %d frames]", n), Reason: "the stack is deeper than is kept of one"}))
		}
		switch {
		case f.Kind == unwind.Python:
			out = append(out, s.places.python(f))
		case f.Return:
			out = append(out, s.places.native(s.sym.Locate(pid, f.Addr, symbolize.Return)))
		default:
			out = append(out, s.places.native(s.sym.Locate(pid, f.Addr, symbolize.Exact)))
		}
	}
	return out
}

func (s *Source) incomplete(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason := why.Error(); len(s.reasons) < maxReasons || s.reasons[reason] > 0 {
		s.reasons[reason]++
	}
}

// Identify has the user that a process runs as read, its name, and the file that it runs.
func (s *Source) Identify(id event.Process) {
	s.queue.add(s.userOf(int(id.PID)), int(id.PID), func() {
		if status, err := proc.ReadStatus(int(id.PID)); err == nil {
			s.tell(&record.Process{Process: id, User: record.UserOf(status.User)}) // the file may not answer
		}
		program := s.sym.Program(id.PID)
		s.tell(&record.Process{Process: id, Name: proc.Comm(int(id.PID)), Program: program})
	}, func() {})
}

// Settle waits until what came before has been told, or patience ends.
func (s *Source) Settle() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.queue.settle(ctx)
}

// Name looks for the names of places, and tells them. It may wait for a
// target's files, and for others that name.
func (s *Source) Name(places []*record.Place) {
	s.naming.Lock()
	defer s.naming.Unlock()
	for _, p := range places {
		a, ok := p.Source.(symbolize.Address)
		if !ok {
			continue
		}
		if !p.Named() {
			l := s.sym.Resolve(a)
			s.tell(&record.Name{Place: p, Location: l, Final: a.Final(l)})
			continue
		}
		old := p.Location()
		if l := s.sym.Again(a, old); l != old {
			s.tell(&record.Name{Place: p, Location: l, Final: a.Final(l)})
		}
	}
}

// Loss returns every cause of loss.
func (s *Source) Loss() []loss.Counter {
	return append(append(s.Taker.Loss(), s.lost.Counters()...), s.sym.Loss()...)
}

// Notes are sentences on stacks that are incomplete, and on what keeps others.
func (s *Source) Notes() (out []string) {
	if note := s.queue.note(); note != "" {
		out = append(out, note)
	}
	s.mu.Lock()
	for _, reason := range slices.Sorted(maps.Keys(s.reasons)) {
		out = append(out, fmt.Sprintf("%d different stacks: %s", s.reasons[reason], reason))
	}
	s.mu.Unlock()
	return append(out, s.Taker.Notes()...)
}

// Close releases the unwinder and what names are read from. The probes must be
// off. What is in use by a target that does not answer is left to the end of
// this process: that is its error.
func (s *Source) Close() error {
	if err := s.queue.close(); err != nil {
		return err
	}
	err := s.Taker.Close()
	s.sym.Close()
	return err
}

// A places makes places, one for each address and frame, and numbers them.
type places struct {
	last   uint64
	byAddr map[symbolize.Address]*record.Place
	byLine map[snapshot.Line]*record.Place
}

// maxPlaces bounds the places that are known again.
const maxPlaces = 1 << 15

func newPlaces() places {
	return places{byAddr: map[symbolize.Address]*record.Place{}, byLine: map[snapshot.Line]*record.Place{}}
}

func (p *places) native(a symbolize.Address) *record.Place {
	if old := p.byAddr[a]; old != nil {
		return old
	}
	if len(p.byAddr) >= maxPlaces {
		clear(p.byAddr)
	}
	p.last++
	place := record.NewPlace(p.last, a.PC(), nil, a)
	p.byAddr[a] = place
	return place
}

func (p *places) python(f unwind.Frame) *record.Place {
	line := snapshot.Line{Function: f.Function, File: f.File, Line: f.Line}
	if f.Function == "" {
		line.Function, line.Reason = "[python function]", f.Reason
	}
	return p.line(line)
}

func (p *places) line(line snapshot.Line) *record.Place {
	if old := p.byLine[line]; old != nil {
		return old
	}
	if len(p.byLine) >= maxPlaces {
		clear(p.byLine)
	}
	p.last++
	place := record.NewPlace(p.last, 0, &snapshot.Location{Lines: []snapshot.Line{line}}, nil)
	p.byLine[line] = place
	return place
}

// Gone tells whether an error says that a process is no longer there.
func Gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unwind.ErrNotAnalyzed)
}
