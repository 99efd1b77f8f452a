package main

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// maxSpool bounds the output of a command that is kept while a view has the screen.
const maxSpool = 1 << 20

// A spool keeps the end of what a command writes while a view has the screen, and prints it
// when the view is over. From then on it passes output on at once. A nil spool does nothing.
type spool struct {
	in, out *os.File // the two ends of a pipe

	mu       sync.Mutex
	kept     []byte
	left     int64 // bytes that were left out
	released bool
	done     chan struct{} // closed when the command has closed its end
}

func newSpool() (*spool, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("take the command's output: %w", err)
	}
	return &spool{in: in, out: out, done: make(chan struct{})}, nil
}

// begin starts to read what the command writes. The command must have been started.
func (s *spool) begin() {
	if s == nil {
		return
	}
	s.in.Close()
	go func() {
		defer close(s.done)
		b := make([]byte, 32<<10)
		for {
			n, err := s.out.Read(b)
			s.take(b[:n])
			if err != nil {
				return
			}
		}
	}()
}

func (s *spool) take(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		_, _ = os.Stdout.Write(b)
		return
	}
	s.kept = append(s.kept, b...)
	if n := len(s.kept) - maxSpool; n > 0 {
		s.left += int64(n)
		s.kept = append(s.kept[:0], s.kept[n:]...)
	}
}

// release gives the screen back to the command.
func (s *spool) release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left > 0 {
		fmt.Fprintf(os.Stderr, "gpumemtrace: the first %d bytes of the command's output were left out\n", s.left)
	}
	_, _ = os.Stdout.Write(s.kept)
	s.kept, s.released = nil, true
}

// drain waits, for at most a second, for what the command wrote before it ended. A process
// that the command started may keep the pipe open.
func (s *spool) drain() {
	if s == nil {
		return
	}
	select {
	case <-s.done:
	case <-time.After(time.Second):
	}
}

// close takes no more output.
func (s *spool) close() {
	if s != nil {
		s.out.Close()
	}
}
