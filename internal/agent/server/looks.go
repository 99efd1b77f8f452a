package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

const (
	// minAge is for how long a Look is given to all who ask, and restAfter for how many
	// times as long as it took: looking never takes more than a third of the time.
	minAge    = 100 * time.Millisecond
	restAfter = 2
	// lookWithin bounds how long a Look is waited for.
	lookWithin = 20 * time.Second
	// keepFor is how long a Look is kept that nobody asks for.
	keepFor = time.Minute
	// maxWaiting bounds the questions that wait for another one: for a Look of the live
	// allocations of a stack, and for something to be made of one.
	maxWaiting = 16
	// maxMade bounds what is kept that was made of a Look, by kind and parameters.
	maxMade = 64
	// maxLive bounds the live allocations of a stack that are sent, the youngest.
	maxLive = 50_000
	// makers is how many things are made at a time.
	makers = 2
)

// errBusy says that too many ask for too much at once.
var errBusy = errors.New("busy: too many questions at once")

// errLate says that the trace does not say in time what it sees.
var errLate = errors.New("the trace does not answer: it waits for stacks or names, or very much goes on")

// looks takes Looks of a trace, one at a time, and shares them among all who ask.
type looks struct {
	source   live.Source   // for who holds work
	patience time.Duration // with a Look
	work     chan struct{}
	make     chan struct{} // makers at a time

	mu      sync.Mutex // guards what follows
	last    *shot
	under   *flight // on its way, nil for none
	waiting int     // for work or make
	drop    *time.Timer

	pictures sync.Mutex // guards the tracker, and the stacks of its Pictures
	tracker  *live.Tracker
	pictured *shot // the last one that the tracker took
	picture  *live.Picture
}

// A flight is a Look on its way.
type flight struct {
	done chan struct{} // closed when it came
	shot *shot
	err  error
}

// A shot is a Look that several share. Nobody changes it.
type shot struct {
	*live.Look
	begun time.Time
	took  time.Duration

	mu   sync.Mutex // guards made
	made map[string]*made
}

// made is something that was made of a shot.
type made struct {
	done  chan struct{}
	bytes []byte
	err   error
}

func newLooks(source live.Source) *looks {
	return &looks{source: source, patience: lookWithin, work: make(chan struct{}, 1), make: make(chan struct{}, makers), tracker: live.NewTracker()}
}

// now returns a Look that is as new as can be had at no more than its part of the time.
func (l *looks) now(ctx context.Context) (*shot, error) { return l.since(ctx, time.Time{}) }

// since returns one that began at a time or later; the zero Time is for now.
func (l *looks) since(ctx context.Context, begun time.Time) (*shot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.patience, errLate)
	defer cancel()
	for {
		l.mu.Lock()
		if s := l.last; s != nil {
			young := time.Since(s.begun.Add(s.took)) < max(minAge, restAfter*s.took)
			if begun.IsZero() && young || !begun.IsZero() && !s.begun.Before(begun) {
				l.drop.Reset(keepFor)
				l.mu.Unlock()
				return s, nil
			}
		}
		f := l.under
		if f == nil {
			f = &flight{done: make(chan struct{})}
			l.under = f
			go l.take(f)
		}
		l.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if f.err != nil || begun.IsZero() || !f.shot.begun.Before(begun) {
			return f.shot, f.err
		}
	}
}

// take takes a Look.
func (l *looks) take(f *flight) {
	l.work <- struct{}{}
	s := &shot{begun: time.Now(), made: map[string]*made{}}
	s.Look, f.err = l.source.Look(live.Query{})
	s.took = time.Since(s.begun)
	<-l.work
	if f.err == nil {
		f.shot = s
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.under = nil
	if f.err == nil {
		l.last = s
		if l.drop == nil {
			l.drop = time.AfterFunc(keepFor, l.forget)
		} else {
			l.drop.Reset(keepFor)
		}
	}
	close(f.done)
}

// forget drops the last Look.
func (l *looks) forget() {
	l.mu.Lock()
	l.last = nil
	l.mu.Unlock()
	l.pictures.Lock()
	l.pictured, l.picture = nil, nil
	l.pictures.Unlock()
}

// wait counts who waits, or refuses.
func (l *looks) wait() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= maxWaiting {
		return errBusy
	}
	l.waiting++
	return nil
}

func (l *looks) waited() {
	l.mu.Lock()
	l.waiting--
	l.mu.Unlock()
}

// allocations returns a Look with the live allocations of a call site.
func (l *looks) allocations(ctx context.Context, of *ledger.SiteKey) (*live.Look, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.patience, errLate)
	defer cancel()
	if err := l.wait(); err != nil {
		return nil, err
	}
	defer l.waited()
	select {
	case l.work <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-l.work }()
	look, err := l.source.Look(live.Query{Allocations: of})
	if err == nil {
		look.Youngest(maxLive)
	}
	return look, err
}

// alone returns what build makes, which is no one else's.
func (l *looks) alone(ctx context.Context, build func() ([]byte, error)) ([]byte, error) {
	if err := l.wait(); err != nil {
		return nil, err
	}
	defer l.waited()
	select {
	case l.make <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-l.make }()
	return build()
}

// of returns what build makes of a Look, made once for all who ask for it by its name.
func (l *looks) of(ctx context.Context, s *shot, name string, build func() ([]byte, error)) ([]byte, error) {
	s.mu.Lock()
	m := s.made[name]
	if m == nil {
		if err := l.wait(); err != nil || len(s.made) >= maxMade {
			if err == nil {
				l.waited()
			}
			s.mu.Unlock()
			return nil, errBusy
		}
		m = &made{done: make(chan struct{})}
		s.made[name] = m
		go func() {
			l.make <- struct{}{}
			l.waited()
			m.bytes, m.err = build()
			<-l.make
			close(m.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-m.done:
		return m.bytes, m.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// look calls with with the Picture of a Look, or of a later one: rates and growth are
// against the one that was pictured before. Neither is kept.
func (l *looks) look(s *shot, with func(*live.Picture)) {
	l.pictures.Lock()
	defer l.pictures.Unlock()
	if l.pictured == nil || l.pictured.begun.Before(s.begun) {
		l.pictured, l.picture = s, l.tracker.Picture(s.Look)
	}
	with(l.picture)
}
