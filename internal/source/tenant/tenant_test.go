package tenant

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// This process says of itself what the kernel does.
func TestOf(t *testing.T) {
	who, whole, err := NewReader().Of(os.Getpid())
	if err != nil || !whole || !strings.HasPrefix(who.Command, os.Args[0]) || who.User == "" {
		t.Errorf("%+v, %v, %v", who, whole, err)
	}
	if _, _, err := NewReader().Of(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no process: %v", err)
	}
}

func TestWithin(t *testing.T) {
	tokens, hang := make(chan struct{}, 1), make(chan struct{})
	if v, ok := within(tokens, time.Minute, func() int { return 7 }); v != 7 || !ok {
		t.Errorf("%d, %v", v, ok)
	}
	for len(tokens) > 0 {
		runtime.Gosched()
	}
	if _, ok := within(tokens, time.Millisecond, func() int { <-hang; return 7 }); ok {
		t.Error("waited for what hangs")
	}
	if _, ok := within(tokens, time.Minute, func() int { t.Error("called"); return 7 }); ok {
		t.Error("called beside one that hangs, with one token")
	}
	close(hang)
}

// Two processes that come together have their users' names, though each is looked up by
// itself: the ranks of a job begin at one moment.
func TestUsersTogether(t *testing.T) {
	r := NewReader()
	for range maxLookups - 1 {
		r.lookups <- struct{}{} // another looks somebody up
	}
	if name := r.user(0); name != "root" {
		t.Errorf("root is called %q", name)
	}
}
