package record

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// The types of entries of a payload.
const (
	_ = iota
	entryTrace
	entryPlace // defines a Place: no record, and not counted as one
	entryStack
	entryName
	entryProcess
	entryReading
	entryLoss
	entryNote
	entryMoment
	entrySweep
	entryReported
	entryCut
	entrySteps
	entryTensors
	entryHeap

	entryEvent = 16 // and above: an event whose shape has the number that is left
)

// No number is left below entryEvent. Another type of records needs a fileVersion in which
// entryEvent is larger. This does not compile if a type takes the number of an event.
const _ = uint(entryEvent - 1 - entryHeap)

// The shape of an event is the fields that many events have in common, and which other
// fields follow.
type shape struct {
	op, kind, space uint8
	api, outer      uint16
	result, device  int32
	fields          uint16
}

// Bits of shape.fields. Five fields are words and have two bits each: how the
// word is written. After the shape's number come the difference to the time
// before, the caller, and the fields in the order of their bits.
const (
	fieldStack = 1 << iota
	fieldChild
	fieldName
	fieldSize // two bits each from here on
	_
	fieldAddr
	_
	fieldHandle
	_
	fieldPart
	_
	fieldStream
	_
	allFields = 1<<iota - 1
)

// How a word is written.
const (
	wordZero   = iota // not at all: it is 0
	wordKnown         // as the slot of a memory where it is; a size not at all
	wordFine          // as the difference to the last that was written as one
	wordCoarse        // as that difference divided by coarse
)

// coarse divides the addresses and sizes that allocators of GPU memory like.
const coarse = 512

// A caller is the thread that an event is of, and its context.
type caller struct {
	pid, tid   uint32
	start, ctx uint64
}

// Numbers in a block that are full make the block full.
const (
	maxShapes  = 1 << 10
	maxCallers = 1 << 12
	maxStacks  = 1 << 14
)

// maxEvent bounds an event's entry, in bytes, besides its name.
const maxEvent = 256

// WordCaches are for words of all events, one cache for words that are alike.
type wordCaches struct{ addresses, handles, objects, parts, streams wordCache }

func newWordCaches() wordCaches {
	return wordCaches{newWordCache(addressBits), newWordCache(handleBits), newWordCache(handleBits), newWordCache(rareBits), newWordCache(rareBits)}
}

func (w *wordCaches) reset() {
	for _, cache := range []*wordCache{&w.addresses, &w.handles, &w.objects, &w.parts, &w.streams} {
		cache.reset()
	}
}

// forHandles returns the cache for Event.Handle: the kernel driver's numbers have
// nothing in common with CUDA's.
func (w *wordCaches) forHandles(op event.Op) *wordCache {
	if op.Kernel() {
		return &w.objects
	}
	return &w.handles
}

// Sizes of memories for words, as powers of two.
const (
	addressBits = 13
	handleBits  = 13
	rareBits    = 6
)

// A wordCache holds words that came up before: an address is freed after it was
// allocated, and allocated again. Writer and reader have equal ones.
type wordCache struct {
	slots []uint64
	shift uint8
	used  bool
	last  uint64 // the last word that was written as a difference
}

func newWordCache(bits uint8) wordCache {
	return wordCache{slots: make([]uint64, 1<<bits), shift: 64 - bits}
}

func (m *wordCache) reset() {
	if m.used {
		clear(m.slots)
		m.used, m.last = false, 0
	}
}

// add remembers a word that was written as a difference.
func (m *wordCache) add(slot, v uint64) {
	m.slots[slot] = v
	m.used, m.last = true, v
}

// slot returns where v is, if it is anywhere.
func (m *wordCache) slot(v uint64) uint64 { return v * 0x9e3779b97f4a7c15 >> m.shift }

// sizes has the last size by the number of the stack, from 1 on, and under 0
// that of events without a stack.
type sizes [maxStacks + 1]uint64

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }
