// Package removal knows which probes this process has put into the code of others, and
// takes them off before the process ends.
//
// The kernel puts a probe on, and takes it off, in the thread that asks for it. It writes
// into the memory of each process that maps the file, and gives up where that thread is
// being killed: get_user_pages_remote (mm/gup.c) fails, uprobe_unregister
// (kernel/events/uprobes.c) says "failed to unregister, leaking uprobe", and the
// breakpoints stay. So this process must not end, by os.Exit either, while such a call is
// under way. A probe that is on when the process ends is no problem: the kernel takes it
// off when it closes the files of a process that has ended.
package removal

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ErrEnding is the error of putting a probe on after All.
var ErrEnding = errors.New("this process is ending: no probe is put on any more")

const (
	// patience is for how long no call under way may come to an end until whoever waits
	// for them gives up. The kernel removes probes of perf events one after the other,
	// each in 20 to 300 ms, also those of other processes.
	patience = 10 * time.Second
	// sideBySide bounds the probes that are taken off at a time: those of links share
	// the kernel's grace periods.
	sideBySide = 32
	// sayAfter and sayEvery are when Watch says how far the removal is.
	sayAfter, sayEvery = time.Second, 5 * time.Second
)

// A Probe is one or more breakpoints that come off together.
type Probe struct {
	of     *set
	what   string
	closer io.Closer
	closed func() error // once
}

// Close takes the probe off, and returns when that is done, whoever began it.
func (p *Probe) Close() error { return p.closed() }

// A set is the probes of a process.
type set struct {
	patience time.Duration

	mu     sync.Mutex
	on     map[*Probe]struct{}
	calls  map[*call]struct{} // under way
	ended  uint64             // calls that have come to an end
	moved  chan struct{}      // closed when ended changes
	ending bool
}

// A call has the kernel put a probe on or take it off.
type call struct{ what string }

func newSet() *set {
	return &set{patience: patience, on: map[*Probe]struct{}{}, calls: map[*call]struct{}{}, moved: make(chan struct{})}
}

var own = newSet()

// Put has attach put a probe on. what names it, for people: "the probe of ...". The
// probe stays on until it is closed; the garbage collector takes none away.
func Put(what string, attach func() (io.Closer, error)) (*Probe, error) { return own.put(what, attach) }

// On returns how many probes are on, those that are coming off included.
func On() int { return own.count() }

// Idle tells whether this process may end: no probe is on, and no call is under way.
func Idle() bool { return own.idle() }

// All takes all probes off and returns when no call is under way any more. From then on
// no probe is put on. The error names a call that does not come to an end.
func All() error { return own.all() }

// Wait waits for done, which closes once certain probes are on or off, as long as such
// calls come to an end. The error names a call that does not; it is ErrStalled if none
// is under way.
func Wait(done <-chan struct{}) error { return own.wait(done) }

// ErrStalled is the error of waiting while no call is under way.
var ErrStalled = errors.New("nothing moves")

// Watch says how far the removal of all probes that are on now has come, after a second
// and then now and then, until stop is called.
func Watch(say func(text string)) (stop func()) { return own.watch(say) }

func (s *set) begin(what string) (*call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil, ErrEnding
	}
	return s.beginLocked(what), nil
}

func (s *set) beginLocked(what string) *call {
	c := &call{what}
	s.calls[c] = struct{}{}
	return c
}

// end says that a call has come to an end, of which p is on, or is not on any more.
func (s *set) end(c *call, p *Probe, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	if on {
		s.on[p] = struct{}{}
	} else {
		delete(s.on, p)
	}
	s.ended++
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *set) put(what string, attach func() (io.Closer, error)) (*Probe, error) {
	c, err := s.begin(what)
	if err != nil {
		return nil, err
	}
	closer, err := attach()
	if err != nil {
		s.end(c, nil, false)
		return nil, err
	}
	p := &Probe{of: s, what: what, closer: closer}
	p.closed = sync.OnceValue(p.remove)
	s.end(c, p, true)
	return p, nil
}

func (p *Probe) remove() error {
	p.of.mu.Lock()
	c := p.of.beginLocked(p.what)
	p.of.mu.Unlock()
	err := p.closer.Close()
	p.of.end(c, p, false)
	return err
}

func (s *set) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.on)
}

func (s *set) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.on)+len(s.calls) == 0
}

// take returns the probes that are on, with the calls under way.
func (s *set) take() (on []*Probe, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for p := range s.on {
		on = append(on, p)
	}
	return on, len(s.calls)
}

func (s *set) all() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			s.mu.Lock()
			moved := s.moved
			s.mu.Unlock()
			on, calls := s.take()
			if len(on)+calls == 0 {
				return
			}
			closeAll(on)
			if len(on) == 0 {
				<-moved // a call that began before ends: what it put on is next
			}
		}
	}()
	return s.wait(done)
}

func closeAll(all []*Probe) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, sideBySide)
	for _, p := range all {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			_ = p.Close() // whoever owns it has the error
		})
	}
	wait.Wait()
}

func (s *set) wait(done <-chan struct{}) error {
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	for {
		s.mu.Lock()
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-done:
			return nil
		case <-moved:
			timer.Reset(s.patience)
		case <-timer.C:
			return s.stalled()
		}
	}
}

// stalled names one of the calls under way.
func (s *set) stalled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		more := ""
		if n := len(s.calls) - 1; n > 0 {
			more = fmt.Sprintf(", nor do %d others", n)
		}
		return fmt.Errorf("the kernel does not answer for %v: %s goes neither on nor off%s", s.patience, c.what, more)
	}
	return ErrStalled
}

func (s *set) watch(say func(text string)) (stop func()) {
	all := s.count()
	ended, watching := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watching)
		timer := time.NewTimer(sayAfter)
		defer timer.Stop()
		for {
			select {
			case <-ended:
				return
			case <-timer.C:
				timer.Reset(sayEvery)
				if on := s.count(); on > 0 {
					say(Text(all-on, all))
				}
			}
		}
	}()
	return func() {
		close(ended)
		<-watching
	}
}

// Text says for people how far a removal is.
func Text(off, all int) string {
	return fmt.Sprintf("removing probes: %d of %d are off", max(off, 0), all)
}
