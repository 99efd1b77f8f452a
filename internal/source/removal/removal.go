// Package removal records the probes that this process has put into the code of others, and removes
// them before the process ends.
//
// The kernel attaches and removes a probe in the thread that asks for it. It writes into the memory of
// each process that maps the file, and stops if somebody kills that thread: get_user_pages_remote
// (mm/gup.c) fails, uprobe_unregister (kernel/events/uprobes.c) logs "failed to unregister, leaking
// uprobe", and the breakpoints stay. So this process must not end during such a call, nor by os.Exit.
// A probe that is on when the process ends does no harm: the kernel removes it when it closes the
// files of the process.
package removal

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ErrEnding is the error of Put after All.
var ErrEnding = errors.New("this process is ending: no probe is put on any more")

const (
	// patience bounds the wait in which no call ends. The kernel removes probes of perf
	// events one after the other, each in 20 to 300 ms, also those of other processes.
	patience = 10 * time.Second
	// sideBySide bounds the probes that are removed at a time. Those of links share the
	// kernel's grace periods.
	sideBySide = 32
	// sayAfter and sayEvery are the times of Watch's reports.
	sayAfter, sayEvery = time.Second, 5 * time.Second
)

// A Probe is one or more breakpoints that are removed together.
type Probe struct {
	of     *set
	what   string
	closer io.Closer
	closed func() error // once
}

// Close removes the probe. It returns when that is done, also if another caller began it.
func (p *Probe) Close() error { return p.closed() }

// A set is the probes of a process.
type set struct {
	patience time.Duration

	mu     sync.Mutex
	on     map[*Probe]struct{}
	calls  map[*call]struct{}
	moved  chan struct{} // closed when a call ends
	ending bool
}

// A call is a call of the kernel that attaches or removes a probe.
type call struct{ what string }

func newSet() *set {
	return &set{patience: patience, on: map[*Probe]struct{}{}, calls: map[*call]struct{}{}, moved: make(chan struct{})}
}

var own = newSet()

// Put calls attach, which puts a probe on. what names the probe for the user: "the probe of ...". It
// stays on until Close.
func Put(what string, attach func() (io.Closer, error)) (*Probe, error) { return own.put(what, attach) }

// Hold calls f, which may hold the last reference to a probe of this process: the kernel then removes it in
// the thread that lets go. The process does not end before f returns. After All, Hold fails and does not
// call f. what names f for the user.
func Hold(what string, f func()) error { return own.hold(what, f) }

// On returns the number of probes, with those under removal.
func On() int { return own.count() }

// Idle reports whether this process may end: there is no probe, and no call runs.
func Idle() bool { return own.idle() }

// All removes all probes and returns when no call runs any more. Put then fails. The error names a
// call that does not end.
func All() error { return own.all() }

// Wait waits until done is closed, as long as calls end. The error names a call that does not end. It
// is ErrStalled if no call runs.
func Wait(done <-chan struct{}) error { return own.wait(done) }

// ErrStalled is the error of Wait if no call runs.
var ErrStalled = errors.New("nothing moves")

// Watch reports the progress of the removal of all present probes, after a second and then regularly,
// until the caller calls stop.
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

// end records that a call ended, and whether p is on now.
func (s *set) end(c *call, p *Probe, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	if on {
		s.on[p] = struct{}{}
	} else {
		delete(s.on, p)
	}
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

func (s *set) hold(what string, f func()) error {
	c, err := s.begin(what)
	if err != nil {
		return err
	}
	defer s.end(c, nil, false)
	f()
	return nil
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

// rest returns the probes that are on, and the number of calls that run, and lets no new one begin.
func (s *set) rest() (on []*Probe, calls int) {
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
			on, calls := s.rest()
			if len(on)+calls == 0 {
				return
			}
			closeAll(on)
			if len(on) == 0 {
				<-moved // a call that began before may have put one on
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
			_ = p.Close() // its owner has the error
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

// stalled names one of the calls that run.
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

// Text describes the progress of a removal.
func Text(off, all int) string {
	return fmt.Sprintf("removing probes: %d of %d are off", max(off, 0), all)
}
