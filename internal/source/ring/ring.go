// Package ring reads ring buffers of BPF programs (kernel/bpf/ringbuf.c).
//
// It maps only the part of a ring buffer that it reads. The memory is the kernel's, and counts
// as that of a BPF map. Each page that is mapped counts as resident memory of this process too,
// twice if the ring buffer is mapped as often as its contents lie in it.
package ring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// A record has a header: its length with two flags, and a number that only the kernel reads.
	headerSize = 8
	busy       = 1 << 31 // it is being written
	discarded  = 1 << 30

	// windowSize is how much is mapped at a time. A new mapping takes 0.1 ms, which is 14 ns an
	// event.
	windowSize = 1 << 20
)

// A Reader reads the records of a ring buffer. One goroutine may read; all methods but Read
// and Wait may be called by others.
type Reader struct {
	waiter
	fd   int
	size uint64

	mu                 sync.Mutex // guards all below
	consumer, producer []byte     // the pages that say how far was read, and written
	window             []byte     // what is mapped
	begin              uint64     // the position of its first byte
}

// Open returns a Reader of a ring buffer of size bytes. The caller keeps fd open until Close.
func Open(fd, size int) (*Reader, error) {
	r := &Reader{fd: fd, size: uint64(size)}
	if err := r.mapPositions(); err != nil {
		return nil, err
	}
	if err := r.open(fd); err != nil {
		r.unmap()
		return nil, err
	}
	return r, nil
}

func (r *Reader) mapPositions() (err error) {
	page := os.Getpagesize()
	if r.consumer, err = unix.Mmap(r.fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map a ring buffer: %w", err)
	}
	if r.producer, err = unix.Mmap(r.fd, int64(page), page, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		r.unmap()
		return fmt.Errorf("map a ring buffer: %w", err)
	}
	return nil
}

func (r *Reader) unmap() {
	for _, m := range []*[]byte{&r.consumer, &r.producer, &r.window} {
		if *m != nil {
			_ = unix.Munmap(*m) // it is mapped
		}
		*m = nil
	}
}

func position(page []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(page))) }

// Empty returns whether all records were read.
func (r *Reader) Empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consumer == nil || atomic.LoadUint64(position(r.consumer)) == atomic.LoadUint64(position(r.producer))
}

var errCut = errors.New("read a ring buffer: a record is cut short")

// Read returns the next record, in buf if it has room, and false if there is none. After
// Close it returns os.ErrClosed.
func (r *Reader) Read(buf []byte) (record []byte, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumer == nil {
		return nil, false, fmt.Errorf("read a ring buffer: %w", os.ErrClosed)
	}
	at := atomic.LoadUint64(position(r.consumer))
	for {
		left := atomic.LoadUint64(position(r.producer)) - at
		if left == 0 {
			return nil, false, nil
		}
		head, err := r.mapped(at, headerSize, left)
		if err != nil {
			return nil, false, err
		}
		length := atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(head))))
		if length&busy != 0 {
			runtime.Gosched()
			continue
		}
		n := uint64(length &^ discarded)
		b, err := r.mapped(at, headerSize+n, left)
		if err != nil {
			return nil, false, err
		}
		if length&discarded == 0 {
			record, ok = append(buf[:0], b[headerSize:]...), true
		}
		at += (headerSize + n + 7) &^ 7
		atomic.StoreUint64(position(r.consumer), at)
		if ok {
			return record, true, nil
		}
	}
}

// mapped returns the n bytes at a position, of which so many are written. The contents of a
// ring buffer lie in it twice, one behind the other, so a record is never in two pieces.
func (r *Reader) mapped(at, n, written uint64) ([]byte, error) {
	if n > min(written, r.size) {
		return nil, errCut
	}
	if at < r.begin || at+n > r.begin+uint64(len(r.window)) {
		if r.window != nil {
			_ = unix.Munmap(r.window) // it is mapped
		}
		page := uint64(os.Getpagesize())
		r.begin = at &^ (page - 1)
		length := max(min(windowSize, r.size), (at+n-r.begin+page-1)&^(page-1))
		var err error
		r.window, err = unix.Mmap(r.fd, int64(2*page+r.begin&(r.size-1)), int(length), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("map a ring buffer: %w", err)
		}
	}
	return r.window[at-r.begin:][:n], nil
}

// Close makes Read and Wait return an error. It may be called again.
func (r *Reader) Close() error {
	err := r.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unmap()
	return err
}
