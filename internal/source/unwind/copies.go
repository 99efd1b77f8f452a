package unwind

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/source/ring"
)

// copyProgram unwinds a copy (bpf/unwind.bpf.c).
const copyProgram = "gm_unwind_copy"

const (
	// copyPID and copyUser are where a copy's process is, and the place of its user
	// (bpf/unwind_copy.h, struct unwind_copy).
	copyPID  = 16
	copyUser = 40
	// maxCopies bounds the copies that are handled together.
	maxCopies = 64
	// copyPatience bounds how long copies wait for the analysis of their process.
	copyPatience = 5 * time.Second
	// copyInterval is the least time between two copies of a batch: a target decides how
	// many there are.
	copyInterval = time.Millisecond
)

// copies unwinds stacks through code that was not known when they were captured. The
// kernel side sent the memory that the unwind may read. After an analysis of the process,
// the same kernel code unwinds that memory.
type copies struct {
	reader   *ring.Reader
	done     chan struct{}     // closed when read has ended
	failed   atomic.Uint64     // copies that could not be unwound
	consumed map[uint32]uint64 // bytes so far, by the number of their user

	mu      sync.Mutex
	waiting []chan struct{} // requests: each is closed when all earlier copies are unwound
}

func (u *Unwinder) startCopies() error {
	return u.copies.start(u.kernel.maps["copies"], u.unwindCopies)
}

// start passes the copies that come through a ring buffer to unwind, in batches, until the reader
// is closed.
func (c *copies) start(from *ebpf.Map, unwind func(batch [][]byte)) (err error) {
	if c.reader, err = ring.Open(from.FD(), int(from.MaxEntries())); err != nil {
		return fmt.Errorf("read copied stacks: %w", err)
	}
	c.done, c.consumed = make(chan struct{}), map[uint32]uint64{}
	go func() {
		defer close(c.done)
		c.read(unwind)
	}()
	return nil
}

func (c *copies) read(unwind func(batch [][]byte)) {
	var asked []chan struct{} // requests from before the current read
	for {
		asked = append(asked, c.requests()...)
		batch, more, err := c.batch()
		unwind(batch)
		if err == nil && !more {
			for _, w := range asked {
				close(w)
			}
			asked = nil
			err = c.reader.Wait(0, c.wanted)
		}
		if err != nil {
			return
		}
	}
}

// batch returns the copies that are there, and whether there may be more.
func (c *copies) batch() (batch [][]byte, more bool, err error) {
	for len(batch) < maxCopies {
		next, ok, err := c.reader.Read(nil)
		if err != nil || !ok {
			return batch, false, err
		}
		batch = append(batch, next)
	}
	return batch, true, nil
}

// wanted returns whether there is something to read, or to answer.
func (c *copies) wanted() bool {
	c.mu.Lock()
	asked := len(c.waiting) > 0
	c.mu.Unlock()
	return asked || !c.reader.Empty()
}

func (u *Unwinder) unwindCopies(batch [][]byte) {
	analysed := map[uint32]bool{}
	for _, c := range batch {
		user := binary.NativeEndian.Uint32(c[copyUser:])
		u.copies.consumed[user] += uint64(len(c))
		_ = u.kernel.maps["copies_read"].Put(user, u.copies.consumed[user]) // there is a place for each
	}
	for _, c := range batch {
		pid := binary.NativeEndian.Uint32(c[copyPID:])
		if !analysed[pid] {
			analysed[pid] = true
			ctx, cancel := context.WithTimeout(context.Background(), copyPatience)
			_ = u.Analyze(ctx, int(pid)) // if it fails, the stack says what is missing
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
	if u.copies.reader == nil {
		return
	}
	select {
	case <-u.copies.request():
	case <-u.copies.done:
	case <-time.After(patience):
	}
}

// request returns a channel that is closed when all copies so far are unwound. It stays
// open if the reader ends before.
func (c *copies) request() <-chan struct{} {
	unwound := make(chan struct{})
	c.mu.Lock()
	c.waiting = append(c.waiting, unwound)
	c.mu.Unlock()
	c.reader.Wake()
	return unwound
}

// requests returns the requests since the last call.
func (c *copies) requests() (asked []chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked, c.waiting = c.waiting, nil
	return asked
}

func (u *Unwinder) closeCopies() (err error) {
	if u.copies.reader == nil {
		return nil
	}
	err = u.copies.reader.Close()
	<-u.copies.done
	return err
}
