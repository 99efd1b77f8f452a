// Package frames turns the stacks that the kernel side captured into records, and
// names their frames. It also reports the names of processes, and who they belong to. What only a
// running process has is read as soon as its stack comes. Names are read when an output
// needs them, from files that stay open.
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
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// A Source reports stacks, names and processes. It is the probes.StackTaker of its
// trace.
type Source struct {
	*unwind.Capture
	sym     *symbolize.Symbolizer
	report  func(record.Record)
	resend  func(ids []uint64) // makes the kernel side send stacks again
	queue   *queue
	tenants *tenant.Reader
	places  places // of the queue's goroutine
	lost    *loss.Set

	naming sync.Mutex // held while places are named

	mu      sync.Mutex
	reasons map[string]uint64 // incomplete stacks by reason
	users   map[int]uint16    // of running processes that had a job
}

const (
	lossNotNamed = iota
	lossNoOwner
)

var causes = []loss.Cause{
	lossNotNamed: loss.Of("stacks_not_named", "stacks whose names were not read because too many stacks waited: the next event with such a stack sends it again"),
	lossNoOwner:  loss.Of("owners_not_read", "processes whose user, container and job were not read because too many stacks waited, or because they had ended"),
}

// maxReasons bounds the reasons for incomplete stacks that are counted.
const maxReasons = 100

// New returns a Source that calls report with its records, from goroutines of its own.
func New(taker *unwind.Capture, report func(record.Record)) *Source {
	return &Source{Capture: taker, sym: symbolize.New(symbolize.ConfigFromEnv()), report: report, queue: newQueue(taker.Options.Meter), tenants: tenant.NewReader(),
		places: newPlaces(), lost: loss.New(causes), reasons: map[string]uint64{}, users: map[int]uint16{}}
}

// Resend sets the function that makes the kernel side send stacks again. Call it before the
// first stack.
func (s *Source) Resend(resend func(ids []uint64)) { s.resend = resend }

// Mapped implements probes.StackTaker, as do the next three.
func (s *Source) Mapped(pid int, m proc.Mapping, cuda bool) {
	s.sym.Invalidate(uint32(pid))
	s.Capture.Mapped(pid, m, cuda)
}

// Forked says that child began with the mappings of parent.
func (s *Source) Forked(parent, child int) {
	s.Capture.Forked(parent, child)
	s.mu.Lock()
	if user, known := s.users[parent]; known {
		s.users[child] = user
	}
	s.mu.Unlock()
	s.renew(child)
}

// Replaced says that pid replaced its image.
func (s *Source) Replaced(pid int) {
	s.Capture.Replaced(pid)
	s.renew(pid)
}

// Ended says that pid has ended.
func (s *Source) Ended(pid int) {
	s.Capture.Ended(pid)
	s.renew(pid)
	s.mu.Lock()
	delete(s.users, pid)
	s.mu.Unlock()
}

// userOf returns the user under which a process's jobs run. It stays the same as long as
// the process runs, so that its jobs run in order.
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

// renew makes later stacks of pid use its new mappings. Stacks that wait already still use
// the old ones.
func (s *Source) renew(pid int) {
	forget := func() { s.sym.Forget(uint32(pid)) }
	s.queue.add(s.userOf(pid), pid, forget, forget)
}

// Stack queues a stack to be read and reported. If there is no room, the kernel side sends
// it again.
func (s *Source) Stack(st *probes.Stack) {
	one, pid := *st, int(st.Process.PID)
	one.Words = append([]uint64(nil), st.Words...)
	s.queue.add(s.userOf(pid), pid, func() {
		frames, modules := s.frames(&one)
		s.report(&record.Stack{ID: one.ID, Process: one.Process, Frames: frames, Modules: modules})
	}, func() {
		s.lost.Add(lossNotNamed, 1)
		s.resend([]uint64{one.ID})
		s.Invalidate(pid)
	})
}

// frames locates the frames of a stack, leaf first, and returns the modules that it is in.
// Frames of a process that has ended may stay without names.
func (s *Source) frames(st *probes.Stack) (out []*record.Place, modules []uint64) {
	pid := st.Process.PID
	if !s.Unwinds() {
		out = make([]*record.Place, len(st.Words))
		for i, pc := range st.Words {
			out[i] = s.places.native(s.sym.Locate(pid, pc, symbolize.Return))
		}
		return out, nil
	}
	decoded := s.Decode(pid, st.Flags, st.Frames, st.Words)
	if decoded.Err != nil {
		s.incomplete(decoded.Err)
	}
	out = make([]*record.Place, 0, len(decoded.Frames)+1)
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
	return out, decoded.Modules
}

func (s *Source) incomplete(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason := why.Error(); len(s.reasons) < maxReasons || s.reasons[reason] > 0 {
		s.reasons[reason]++
	}
}

// Identify queues a process's user, who it belongs to, its name and the file that it runs to
// be read.
func (s *Source) Identify(id event.Process) {
	s.queue.add(s.userOf(int(id.PID)), int(id.PID), func() {
		if user, err := proc.EffectiveUser(int(id.PID)); err == nil {
			s.report(&record.Process{Process: id, User: record.UserOf(user)}) // the file may not answer
		}
		if who, err := s.tenants.Of(int(id.PID)); err == nil && !proc.EndedSince(int(id.PID), id.Ticks()) {
			parent, _ := proc.Parent(int(id.PID))
			s.report(&record.Process{Process: id, Who: who, Parent: uint32(parent)})
		} else {
			s.lost.Add(lossNoOwner, 1)
		}
		program := s.sym.Program(id.PID)
		s.report(&record.Process{Process: id, Name: proc.Comm(int(id.PID)), Program: program})
	}, func() { s.lost.Add(lossNoOwner, 1) })
}

// Wait returns when everything so far has been reported, or patience ends.
func (s *Source) Wait() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.queue.wait(ctx)
}

// Name looks up the names of places, and reports them. It may wait for a target's files,
// and for other calls of Name.
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
			s.report(&record.Name{Place: p, Location: l, Final: a.Final(l)})
			continue
		}
		old := p.Location()
		if l := s.sym.Retry(a, old); l != old {
			s.report(&record.Name{Place: p, Location: l, Final: a.Final(l)})
		}
	}
}

// Loss returns the counters of this package, of unwind and of symbolize.
func (s *Source) Loss() []loss.Counter {
	return append(append(s.Capture.Loss(), s.lost.Counters()...), s.sym.Loss()...)
}

// Notes describe incomplete stacks, and what delays others.
func (s *Source) Notes() (out []string) {
	if note := s.queue.note(slow); note != "" {
		out = append(out, note)
	}
	s.mu.Lock()
	for _, reason := range slices.Sorted(maps.Keys(s.reasons)) {
		out = append(out, fmt.Sprintf("%d different stacks: %s", s.reasons[reason], reason))
	}
	s.mu.Unlock()
	return append(out, s.Capture.Notes()...)
}

// Close releases the unwinder and the open files. The probes must be off. If a target does
// not answer, Close fails, and the end of this process releases them.
func (s *Source) Close() error {
	if err := s.queue.close(); err != nil {
		return err
	}
	err := s.Capture.Close()
	s.sym.Close()
	return err
}

// places makes and numbers places, one for each address and frame.
type places struct {
	last   uint64
	byAddr map[symbolize.Address]*record.Place
	byLine map[snapshot.Line]*record.Place
}

// maxPlaces bounds the places that are remembered.
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

// Gone reports whether an error says that a process has ended.
func Gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unwind.ErrNotAnalyzed)
}
