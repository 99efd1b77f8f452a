package removal

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
)

type closer func() error

func (c closer) Close() error { return c() }

func putOne(t *testing.T, s *set, what string, close func() error) *Probe {
	t.Helper()
	p, err := s.put(what, func() (io.Closer, error) { return closer(close), nil })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A removal lasts as long as its probes come off, however slowly that is.
func TestWaitsForWork(t *testing.T) {
	s := newSet()
	s.patience = time.Hour
	next := make(chan struct{}) // as the kernel's lock, one after the other
	for i := range 100 {
		putOne(t, s, fmt.Sprint("probe ", i), func() error { <-next; return nil })
	}
	done := make(chan error, 1)
	go func() { done <- s.all() }()
	for range 100 {
		select {
		case err := <-done:
			t.Fatalf("ended with probes on: %v", err)
		case next <- struct{}{}:
		}
	}
	if err := <-done; err != nil || !s.idle() {
		t.Errorf("%v, %d probes are on", err, s.count())
	}
}

// What holds a probe keeps the process, too, until it lets go. After the end nothing is held.
func TestWaitsForHolders(t *testing.T) {
	s := newSet()
	s.patience = time.Hour
	held, let := make(chan struct{}), make(chan struct{})
	go s.hold("a link", func() { close(held); <-let })
	<-held
	done := make(chan error, 1)
	go func() { done <- s.all() }()
	for ending := false; !ending; {
		s.mu.Lock()
		ending = s.ending
		s.mu.Unlock()
	}
	if err := s.hold("another", func() { t.Error("held after the end") }); !errors.Is(err, ErrEnding) {
		t.Error(err)
	}
	select {
	case err := <-done:
		t.Fatalf("ended while a probe was held: %v", err)
	default:
	}
	close(let)
	if err := <-done; err != nil || !s.idle() {
		t.Errorf("%v, idle %t", err, s.idle())
	}
}

// It gives up where nothing moves, and says what it waits for.
func TestGivesUp(t *testing.T) {
	s := newSet()
	s.patience = time.Millisecond
	begun, never := make(chan struct{}), make(chan struct{})
	defer close(never)
	p := putOne(t, s, "the probe of libx.so", func() error { close(begun); <-never; return nil })
	go func() { _ = p.Close() }()
	<-begun
	if err := s.all(); err == nil || !strings.Contains(err.Error(), "the probe of libx.so") {
		t.Errorf("got %v", err)
	}
	if s.idle() {
		t.Error("idle with a call under way")
	}
	if err := newSet().wait(closed()); err != nil {
		t.Errorf("nothing to wait for: %v", err)
	}
	empty := newSet()
	empty.patience = time.Millisecond
	if err := empty.wait(make(chan struct{})); !errors.Is(err, ErrStalled) {
		t.Errorf("without a call under way: %v", err)
	}
}

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A probe that goes on while all come off comes off, and none goes on after that. Each
// is closed once.
func TestAllIsAll(t *testing.T) {
	s := newSet()
	var mu sync.Mutex
	times := map[string]int{}
	count := func(what string) func() error {
		return func() error {
			mu.Lock()
			defer mu.Unlock()
			times[what]++
			return nil
		}
	}
	p := putOne(t, s, "a", count("a"))
	begun, go_ := make(chan struct{}), make(chan struct{})
	late := make(chan error, 1)
	go func() {
		_, err := s.put("late", func() (io.Closer, error) {
			close(begun)
			<-go_
			return closer(count("late")), nil
		})
		late <- err
	}()
	<-begun
	done := make(chan error, 1)
	go func() { done <- s.all() }()
	for s.count() > 0 { // a is coming off
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-done:
		t.Fatalf("ended while a probe goes on: %v", err)
	default:
	}
	close(go_)
	if err := errors.Join(<-done, <-late, p.Close()); err != nil {
		t.Error(err)
	}
	if times["a"] != 1 || times["late"] != 1 {
		t.Errorf("closed %v times", times)
	}
	if _, err := s.put("after", func() (io.Closer, error) { t.Error("put on"); return nil, nil }); !errors.Is(err, ErrEnding) {
		t.Errorf("after that: %v", err)
	}
}
