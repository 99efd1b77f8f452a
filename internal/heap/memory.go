package heap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Memory is the memory of a process, or of anything that stands in for one.
type Memory interface {
	// ReadAt reads as many bytes as can be read without a gap, from an address.
	ReadAt(to []byte, address uint64) (int, error)
}

// processMemory is the memory of the process of this PID, which goes on meanwhile.
type processMemory int

// ReadAt reads bytes of the process.
func (pid processMemory) ReadAt(to []byte, address uint64) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	local := []unix.Iovec{{Base: &to[0]}}
	local[0].SetLen(len(to))
	remote := []unix.RemoteIovec{{Base: uintptr(address), Len: len(to)}}
	n, err := unix.ProcessVMReadv(int(pid), local, remote, 0)
	return max(n, 0), err
}

// Blocks of memory are read whole. They are a few pages, so that objects that lie
// beside each other cost one system call.
const (
	pageSize   = 4 << 10
	blockPages = 4
	blockSize  = pageSize * blockPages
	// Lists may lead to and fro, and while they are followed there is little else in memory:
	// up to 64 MiB. References lead to objects beside: up to 32 MiB, and to names from then
	// on: 4 MiB.
	listSlots = 4 << 10
	edgeSlots = 2 << 10
	nameSlots = 1 << 8
	populated = 128 // blocks, of 2 MiB
	// maxAddress is the end of what a process may map on x86-64 and arm64.
	maxAddress = 1 << 57
)

// Reasons to stop a reading before its end.
var (
	errTime  = errors.New("it took too long")
	errBytes = errors.New("too many bytes would have to be read")
	errGone  = errors.New("the process is gone")
)

// A cache has the blocks of a memory that were read last.
//
// A cache is not memory of Go's, whose collector would let as much garbage pile up beside
// it: release gives it back.
type cache struct {
	memory   Memory
	data     []byte           // of all blocks
	blocks   []block          // in the order of their reading: the oldest one makes room
	oldest   int              // of all blocks, if there is no more room
	index    map[uint64]int32 // of blocks, by number
	recent   [1 << 12]int32   // of blocks asked for, by the end of their number
	scratch  []byte
	deadline time.Time
	left     int64 // bytes that may still be read
	stopped  error // the reason to read no more
	reads    uint
	ticks    uint
	done     <-chan struct{}
}

type block struct {
	number uint64 // its address in blocks
	valid  uint8  // a bit for each page that could be read
}

const whole = 1<<blockPages - 1

func newCache(m Memory, maxBytes int64, deadline time.Time) *cache {
	return &cache{memory: m, left: maxBytes, deadline: deadline}
}

// open makes room for as many blocks as there are while lists are followed.
func (c *cache) open() error {
	data, err := unix.Mmap(-1, 0, listSlots*blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("get memory for what is read: %w", err)
	}
	_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // it is cheaper to get, and to go to and fro in
	c.data, c.index = data, make(map[uint64]int32, listSlots)
	c.shrink(listSlots)
	return nil
}

// shrink forgets the blocks that were read, leaves room for so many, and gives the rest back.
func (c *cache) shrink(slots int) {
	_ = unix.Madvise(c.data[slots*blockSize:], unix.MADV_DONTNEED)
	c.blocks = make([]block, 0, slots)
	c.forget()
}

// release gives the cache's memory back. Nothing can be read from then on.
func (c *cache) release() {
	if c.data != nil {
		_ = unix.Munmap(c.data)
	}
	c.data, c.blocks, c.oldest = nil, nil, 0
}

// forget makes the next reads see the memory as it is then.
func (c *cache) forget() {
	clear(c.index)
	c.blocks, c.oldest = c.blocks[:0], 0
}

// find returns the index of a block that was read.
func (c *cache) find(number uint64) (int, bool) {
	recent := &c.recent[number%uint64(len(c.recent))]
	if i := int(*recent); i < len(c.blocks) && c.blocks[i].number == number {
		return i, true
	}
	i, ok := c.index[number]
	if ok {
		*recent = i
	}
	return int(i), ok
}

// dataOf returns the memory of a block.
func (c *cache) dataOf(i int) []byte { return c.data[i*blockSize : (i+1)*blockSize : (i+1)*blockSize] }

// block returns the index of the block that has an address, -1 if it may not be read.
func (c *cache) block(address uint64) int {
	number := address / blockSize
	if i, ok := c.find(number); ok {
		return i
	}
	if !c.allowed() {
		return -1
	}
	i := len(c.blocks)
	if i < cap(c.blocks) {
		c.blocks = append(c.blocks, block{})
		if i%populated == 0 { // at once, for one fault in each page costs more
			_ = unix.Madvise(c.data[i*blockSize:min(i+populated, cap(c.blocks))*blockSize], unix.MADV_POPULATE_WRITE)
		}
	} else {
		i = c.oldest
		c.oldest = (i + 1) % len(c.blocks)
		delete(c.index, c.blocks[i].number)
	}
	b := &c.blocks[i]
	*b = block{number: number}
	c.index[number] = int32(i)
	c.left -= blockSize
	start, data := number*blockSize, c.dataOf(i)
	n, err := c.memory.ReadAt(data, start)
	if n == blockSize {
		b.valid = whole
		return i
	}
	if errors.Is(err, unix.ESRCH) {
		c.stopped = errGone
		return -1
	}
	for page := range blockPages {
		end := (page + 1) * pageSize
		if n >= end {
			b.valid |= 1 << page
		} else if n, _ := c.memory.ReadAt(data[end-pageSize:end], start+uint64(end-pageSize)); n == pageSize {
			b.valid |= 1 << page
		}
	}
	return i
}

// allowed tells whether the limits allow to read another block.
func (c *cache) allowed() bool {
	if c.stopped != nil {
		return false
	}
	if c.left <= 0 {
		c.stopped = errBytes
		return false
	}
	if c.reads++; c.reads%64 == 0 {
		c.check()
	}
	return c.stopped == nil
}

// tick is check, now and then: for loops whose steps are short.
func (c *cache) tick() bool {
	if c.ticks++; c.ticks%256 == 0 {
		return c.check()
	}
	return c.stopped == nil
}

// check stops the reading when its time is over or nobody waits for it any more.
func (c *cache) check() bool {
	if c.stopped != nil {
		return false
	}
	select {
	case <-c.done:
		c.stopped = errTime
	default:
		if !c.deadline.IsZero() && time.Now().After(c.deadline) {
			c.stopped = errTime
		}
	}
	return c.stopped == nil
}

// part bounds what is read until resume is called: to one part in so many of the time and the bytes that are
// left. What exceeds it stops nothing that is read later.
func (c *cache) part(of int64) (resume func()) {
	deadline, left := c.deadline, c.left
	if !deadline.IsZero() {
		c.deadline = time.Now().Add(time.Until(deadline) / time.Duration(of))
	}
	c.left = left / of
	return func() {
		c.deadline, c.left = deadline, left-(left/of-c.left)
		if errors.Is(c.stopped, errTime) || errors.Is(c.stopped, errBytes) {
			c.stopped = nil
		}
	}
}

// bytes returns n bytes at an address, nil if not all of them can be read. They are
// valid until the next call.
func (c *cache) bytes(address uint64, n int) []byte {
	if address < pageSize || address >= maxAddress || n < 0 {
		return nil
	}
	if at := int(address % blockSize); at+n <= blockSize {
		i := c.block(address)
		if i < 0 || !c.blocks[i].has(at, n) {
			return nil
		}
		return c.dataOf(i)[at : at+n]
	}
	if n > len(c.scratch) {
		if n > maxPiece {
			return nil
		}
		c.scratch = make([]byte, n+n/2)
	}
	out := c.scratch[:0]
	for len(out) < n {
		at := int(address % blockSize)
		size := min(n-len(out), blockSize-at)
		i := c.block(address)
		if i < 0 || !c.blocks[i].has(at, size) {
			return nil
		}
		out = append(out, c.dataOf(i)[at:at+size]...)
		address += uint64(size)
	}
	return out
}

// maxPiece bounds what is read at once.
const maxPiece = 1 << 20

// has tells whether n bytes of the block could be read.
func (b *block) has(at, n int) bool {
	if n == 0 {
		return true
	}
	for page := at / pageSize; page <= (at+n-1)/pageSize; page++ {
		if b.valid&(1<<page) == 0 {
			return false
		}
	}
	return true
}

// word returns the 64-bit word at an address, 0 if it cannot be read.
func (c *cache) word(address uint64) uint64 {
	w, _ := c.load(address)
	return w
}

// load returns the 64-bit word at an address.
func (c *cache) load(address uint64) (uint64, bool) {
	if at := address % blockSize; at <= blockSize-8 && address >= pageSize && address < maxAddress {
		if i, ok := c.find(address / blockSize); ok && c.blocks[i].valid == whole {
			return binary.LittleEndian.Uint64(c.data[i*blockSize+int(at):]), true
		}
	}
	b := c.bytes(address, 8)
	if b == nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}

// words returns n words at an address, fewer where memory ends. The slice is new.
func (c *cache) words(address uint64, n int) []uint64 {
	out := make([]uint64, 0, max(0, min(n, 1<<16)))
	for len(out) < n {
		size := min(n-len(out), 1024)
		b := c.bytes(address, size*8)
		if b == nil {
			break
		}
		for ; len(b) >= 8; b = b[8:] {
			out = append(out, binary.LittleEndian.Uint64(b))
		}
		address += uint64(size) * 8
	}
	return out
}

// text returns the bytes up to a NUL, at most limit of them.
func (c *cache) text(address uint64, limit int) string {
	for _, n := range []int{64, limit} {
		n = min(n, limit)
		b := c.bytes(address, n)
		if b == nil {
			b = c.bytes(address, min(n, int(pageSize-address%pageSize)))
		}
		for i, ch := range b {
			if ch == 0 {
				return string(b[:i])
			}
		}
	}
	return ""
}
