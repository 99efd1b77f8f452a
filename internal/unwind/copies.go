package unwind

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// copyProgram unwinds a copy (bpf/unwind.bpf.c).
const copyProgram = "gm_unwind_copy"

const (
	// copyPID is where a copy's process is (bpf/unwind_copy.h, struct unwind_copy).
	copyPID = 16
	// maxCopies bounds the copies that are handled together. The kernel side has
	// room for about as many.
	maxCopies = 64
	// copyPatience bounds how long copies wait for their process's analysis.
	copyPatience = 5 * time.Second
	// copyInterval is the least time between two of a stream of copies: a target
	// decides how many there are.
	copyInterval = time.Millisecond
)

// copies unwinds stacks that led through code which was not known when they were
// taken. The kernel side sent what their unwind may read; it unwinds that here, by
// the same code, once the process was analysed.
type copies struct {
	reader *ringbuf.Reader
	done   chan struct{} // closed when readCopies has ended
	failed atomic.Uint64 // copies that could not be unwound

	mu      sync.Mutex
	waiting []chan struct{} // closed when all copies so far are unwound
}

func (u *Unwinder) startCopies() error {
	if u.kernel.copy == nil {
		return nil
	}
	c := &u.copies
	var err error
	if c.reader, err = ringbuf.NewReader(u.kernel.maps["copies"]); err != nil {
		return fmt.Errorf("read copied stacks: %w", err)
	}
	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		u.readCopies()
	}()
	return nil
}

// readCopies handles copies, as many together as have come, until the reader is
// closed.
func (u *Unwinder) readCopies() {
	r := u.copies.reader
	for {
		r.SetDeadline(time.Time{})
		var batch [][]byte
		var err error
		for len(batch) < maxCopies {
			var next ringbuf.Record
			if next, err = r.Read(); err != nil {
				break
			}
			batch = append(batch, next.RawSample)
			r.SetDeadline(time.Now()) // those that are there
		}
		u.unwindCopies(batch)
		switch {
		case errors.Is(err, ringbuf.ErrFlushed):
			u.copies.drained()
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return
		}
	}
}

func (u *Unwinder) unwindCopies(batch [][]byte) {
	analysed := map[uint32]bool{}
	for _, c := range batch {
		pid := binary.NativeEndian.Uint32(c[copyPID:])
		if !analysed[pid] {
			analysed[pid] = true
			ctx, cancel := context.WithTimeout(context.Background(), copyPatience)
			_ = u.Analyze(ctx, int(pid)) // what is known already may do; else the stack says what lacks
			cancel()
		}
		if err := u.kernel.unwindCopy(c); err != nil {
			u.copies.failed.Add(1)
		}
		time.Sleep(copyInterval)
	}
}

// unwindCopy has the kernel unwind a copy and send its stack.
func (k *kernel) unwindCopy(c []byte) error {
	address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(c))))
	result, err := k.copy.Run(&ebpf.RunOptions{Context: address})
	runtime.KeepAlive(c)
	if err == nil && result != 0 {
		err = errors.New("nothing was sent")
	}
	return err
}

// Drain waits until the copies so far are unwound, or patience ends.
func (u *Unwinder) Drain(patience time.Duration) {
	c := &u.copies
	if c.reader == nil {
		return
	}
	drained := make(chan struct{})
	c.mu.Lock()
	c.waiting = append(c.waiting, drained)
	c.mu.Unlock()
	if c.reader.Flush() != nil { // closed
		return
	}
	select {
	case <-drained:
	case <-time.After(patience):
	}
}

func (c *copies) drained() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiting {
		close(w)
	}
	c.waiting = nil
}

func (u *Unwinder) closeCopies() (err error) {
	if u.copies.reader == nil {
		return nil
	}
	err = u.copies.reader.Close()
	<-u.copies.done
	return err
}
