package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

const (
	// A snapshot serves all requests for at least minAge, and for restAfter times as long as
	// it took. So snapshots take at most a third of the time.
	minAge    = 100 * time.Millisecond
	restAfter = 2
	// lookWithin bounds the wait for a snapshot.
	lookWithin = 20 * time.Second
	// keepFor is how long a snapshot is kept without a request for it.
	keepFor = time.Minute
	// maxWaiting bounds the requests that wait for their turn: to take a snapshot of a
	// stack's live allocations, or to make something of a snapshot.
	maxWaiting = 16
	// maxMade bounds the answers that are kept with a snapshot, by kind and parameters.
	maxMade = 64
	// maxLive bounds the live allocations of a stack in an answer. The youngest are sent.
	maxLive = 50_000
	// makers bounds the answers that are made at a time.
	makers = 2
)

// errBusy means that there are too many requests at once.
var errBusy = errors.New("busy: too many requests at once")

// errLate means that the trace did not give a snapshot in time.
var errLate = errors.New("the trace does not answer: it waits for stacks or names, or it is very busy")

// looks takes snapshots of a trace, one at a time, and shares them among all requests.
type looks struct {
	source   live.Source   // only the holder of work uses it
	patience time.Duration // the longest wait for a snapshot
	work     chan struct{}
	make     chan struct{} // has a slot for each of makers
	flights  singleflight.Group

	mu      sync.Mutex // guards last, waiting and drop
	last    *shot
	waiting int // for work or make
	drop    *time.Timer

	pictures sync.Mutex // guards the tracker, and the stacks of its statuses
	tracker  *live.Tracker
	pictured *shot // the last shot that the tracker got
	picture  *live.Status
}

// A shot is a snapshot that requests share, so none of them changes it.
type shot struct {
	*live.Snapshot
	begun time.Time
	took  time.Duration

	mu   sync.Mutex // guards made
	made map[string]*made
}

// made is an answer that was made of a shot.
type made struct {
	done  chan struct{}
	bytes []byte
	err   error
}

func newLooks(source live.Source) *looks {
	return &looks{source: source, patience: lookWithin, work: make(chan struct{}, 1), make: make(chan struct{}, makers), tracker: live.NewTracker()}
}

// now returns the newest snapshot, or takes another one if that one is too old.
func (l *looks) now(ctx context.Context) (*shot, error) { return l.since(ctx, time.Time{}) }

// since returns a snapshot that began at a time or later. The zero Time is for now.
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
		flight := l.flights.DoChan("", l.take)
		l.mu.Unlock()
		select {
		case f := <-flight:
			if f.Err != nil {
				return nil, f.Err
			}
			if s := f.Val.(*shot); begun.IsZero() || !s.begun.Before(begun) {
				return s, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take takes a snapshot and returns its *shot.
func (l *looks) take() (any, error) {
	l.work <- struct{}{}
	s := &shot{begun: time.Now(), made: map[string]*made{}}
	var err error
	s.Snapshot, err = l.source.Snapshot(live.Query{})
	s.took = time.Since(s.begun)
	<-l.work
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = s
	if l.drop == nil {
		l.drop = time.AfterFunc(keepFor, l.forget)
	} else {
		l.drop.Reset(keepFor)
	}
	return s, nil
}

// forget drops the last snapshot.
func (l *looks) forget() {
	l.mu.Lock()
	l.last = nil
	l.mu.Unlock()
	l.pictures.Lock()
	l.pictured, l.picture = nil, nil
	l.pictures.Unlock()
}

// wait counts one more waiting request, or returns errBusy.
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

// allocations returns a snapshot with the live allocations of a call site.
func (l *looks) allocations(ctx context.Context, of *ledger.SiteKey) (*live.Snapshot, error) {
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
	look, err := l.source.Snapshot(live.Query{Allocations: of})
	if err == nil {
		look.Youngest(maxLive)
	}
	return look, err
}

// alone returns the answer that build makes, for one request only.
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

// of returns the answer that build makes of a snapshot. It is made once for all requests with
// the same name.
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

// look calls with with the status of a snapshot, or of a later one. Rates and growth are
// relative to the status before. with must not keep the status.
func (l *looks) look(s *shot, with func(*live.Status)) {
	l.pictures.Lock()
	defer l.pictures.Unlock()
	if l.pictured == nil || l.pictured.begun.Before(s.begun) {
		l.pictured, l.picture = s, l.tracker.Add(s.Snapshot)
	}
	with(l.picture)
}
