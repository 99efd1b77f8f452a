package record

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// append encodes r. A record that refers to places follows their definitions.
func (w *Writer) append(r Record) {
	if w.collecting != nil && w.collecting.tooLarge {
		return
	}
	if ev, ok := r.(*event.Event); ok {
		n := maxEvent + min(len(ev.Name), maxString)
		if n > w.queue.size {
			w.loss.Add(lossUnfit, 1)
			return
		}
		w.room(n)
		w.enc.event(ev)
		return
	}
	n, ok := bound(r)
	if !ok || n > w.queue.size {
		w.loss.Add(lossUnfit, 1)
		return
	}
	// Definitions are forgotten when a keyframe begins or a block is lost, but hardly
	// twice in a row.
	for range 2 {
		resets := w.resets
		w.define(r)
		w.room(n)
		if resets == w.resets {
			break
		}
	}
	w.enc.record(r)
	if w.enc.cut > 0 {
		w.loss.Add(lossTextCut, w.enc.cut)
		w.enc.cut = 0
	}
}

// define defines the places that a record refers to.
func (w *Writer) define(r Record) {
	switch r := r.(type) {
	case *Stack:
		for _, p := range r.Frames {
			w.place(p)
		}
	case *Name:
		w.place(r.Place)
	}
}

// place defines a Place that was not defined yet. One that has a name before
// anything refers to it may never get another.
func (w *Writer) place(p *Place) {
	if !w.places.add(p.ID) {
		return
	}
	naming := p.naming.Load()
	l := p.location.Load()
	n := maxEvent
	if naming != unnamed && wellNamed(l) && n+locationBound(l) <= w.queue.size {
		n += locationBound(l)
	} else {
		naming = unnamed
	}
	w.room(n)
	w.places.add(p.ID)
	w.enc.place(p, naming, l)
}

// room makes room for an entry of at most n bytes, in a new block if need be.
func (w *Writer) room(n int) {
	if w.enc.fits(n) {
		return
	}
	if !w.keyframeDue {
		w.flushBlock()
	}
	if w.keyframeDue {
		w.keyframe()
	}
}

// begin begins a block. It has no room when a keyframe is due, which only Append
// may ask for.
func (w *Writer) begin() {
	if w.sink.gap.Swap(false) {
		w.forget()
		w.repair.needed = true
	}
	w.block = w.queue.empty()
	buf := w.block.buf[blockHeaderSize:]
	w.keyframeDue = w.collecting == nil && (w.beginWithKeyframe || w.ring.full() || w.repair.due(w))
	if w.keyframeDue {
		buf = nil
	}
	if w.collecting != nil {
		w.block.Flags = flagKeyframe
	}
	w.enc.reset(buf)
}

// forget has places defined again.
func (w *Writer) forget() {
	w.places.reset()
	w.resets++
}

// finish ends the block being filled.
func (w *Writer) finish() *block {
	b := w.block
	b.Length, b.Records = uint32(w.enc.n), w.enc.records
	b.First, b.Last = w.enc.first, w.enc.last
	w.time = max(w.time, b.Last)
	return b
}

// flushBlock ends the block being filled and begins another.
func (w *Writer) flushBlock() {
	b := w.finish()
	switch {
	case b.Length == 0:
		w.queue.release(b)
	case w.collecting != nil:
		w.collecting.add(b)
	default:
		w.put(b, w.opts.Unbounded)
	}
	w.begin()
}

// put hands over a block, or drops it if the disk is behind.
func (w *Writer) put(b *block, must bool) {
	b.Lost = w.lost
	if w.queue.put(b, must) {
		w.lost = 0
		w.ring.use(blockHeaderSize + int64(b.Length))
		return
	}
	w.lost += uint64(b.Records)
	w.loss.Add(lossNotRecorded, uint64(b.Records))
	w.queue.release(b)
	w.sink.gap.Store(true)
}
