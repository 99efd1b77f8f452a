package unwind

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
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
	// drainInterval is the time between two looks whether all copies are unwound.
	drainInterval = time.Millisecond
)

// copies unwinds stacks through code that was not known when they were captured. The
// kernel side sent the memory that the unwind may read. After an analysis of the process,
// the same kernel code unwinds that memory.
type copies struct {
	reader   *ring.Reader
	done     chan struct{}     // closed when read has ended
	busy     atomic.Bool       // copies are out of the ring and not unwound
	failed   atomic.Uint64     // copies that could not be unwound
	consumed map[uint32]uint64 // bytes so far, by the number of their user
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
	for {
		c.busy.Store(true) // before the ring is empty: see idle
		batch, more, err := c.batch()
		unwind(batch)
		if more {
			continue
		}
		c.busy.Store(false)
		if err != nil || c.reader.Wait(0, func() bool { return !c.reader.Empty() }) != nil {
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

// idle returns whether all copies so far are unwound.
func (c *copies) idle() bool { return c.reader.Empty() && !c.busy.Load() }

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
	for end := time.Now().Add(patience); !u.copies.idle() && time.Now().Before(end); {
		time.Sleep(drainInterval)
	}
}

func (u *Unwinder) closeCopies() (err error) {
	if u.copies.reader == nil {
		return nil
	}
	err = u.copies.reader.Close()
	<-u.copies.done
	return err
}
