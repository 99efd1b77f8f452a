package record

import (
	"sync/atomic"
	"time"
)

// A ring says how much room the region that is being written has.
type ring struct {
	size  int64 // of a region, 0 without
	block int64 // the largest size of a block and of the end of the recording
	// left is what blocks leave. One that is not compressed yet counts with the most
	// that it may have.
	left *atomic.Int64
}

func newRing(l layout, blockSize int) ring {
	r := ring{size: l.regionSize, block: largestBlock(blockSize) + largestBlock(0)}
	r.begin()
	return r
}

// begin begins a region.
func (r *ring) begin() {
	r.left = &atomic.Int64{}
	r.left.Store(r.size)
}

// full reports whether the next block belongs into the next region.
func (r *ring) full() bool { return r.size > 0 && r.left.Load() < r.block }

// A keyframe collects blocks until all of it is there: half of one is of no use.
type keyframe struct {
	blocks      []*block
	size, limit int64
	tooLarge    bool
}

func (k *keyframe) add(w *Writer, b *block) {
	w.sink.packer.pack(b, nil)
	w.queue.release(&block{buf: b.buf}) // a keyframe waits compressed
	b.buf = nil
	k.size += int64(len(b.packed))
	if k.size > k.limit {
		k.blocks, k.tooLarge = nil, true
		return
	}
	k.blocks = append(k.blocks, b)
}

// keyframe records a Cut and the records that rebuild the state, in a new region if there
// are any.
func (w *Writer) keyframe() {
	limit := int64(maxKeyframe)
	if w.ring.size > 0 {
		limit = min(limit, w.ring.size/2)
		w.ring.begin()
	}
	w.repair = healing{last: time.Now()}
	w.beginWithKeyframe = false
	w.forget()
	k := &keyframe{limit: limit}
	w.collecting = k
	w.cut(flagCut | flagKeyframe)
	w.opts.Keyframe(w.append)
	k.add(w, w.finish())
	if k.tooLarge {
		w.loss.Add(lossKeyframeLarge, 1)
		w.forget()
		w.cut(flagCut | flagKeyframe | flagBare)
		k.blocks = []*block{w.finish()}
	}
	for _, b := range k.blocks {
		w.put(b, true)
	}
	w.collecting = nil
	w.begin()
}

// cut begins a block with a Cut, instead of the one being filled.
func (w *Writer) cut(flags uint32) {
	w.queue.release(w.block)
	w.begin()
	w.block.Flags = flags
	w.entry(&Cut{Time: w.time})
}

// healInterval is how long a keyframe heals no further loss. It costs the
// caller of Append what a report costs.
const healInterval = 10 * time.Second

// A healing says when a file without regions needs a keyframe: after a loss, for
// else all that follows is uncertain.
type healing struct {
	needed bool
	last   time.Time
}

// due reports whether a keyframe would repair a loss: blocks are
// written again.
func (h *healing) due(w *Writer) bool {
	return h.needed && w.ring.size == 0 && w.opts.Keyframe != nil &&
		w.Err() == nil && w.queue.unwritten() <= 1 && time.Since(h.last) >= healInterval
}
