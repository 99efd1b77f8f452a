package record

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// append encodes r. A record that refers to places follows their definitions.
func (w *Writer) append(r Record) {
	if w.collecting != nil && w.collecting.tooLarge {
		return
	}
	var written bool
	if ev, ok := r.(*event.Event); ok {
		written = w.event(ev)
	} else {
		written = w.entry(r)
	}
	if !written {
		w.loss.Add(lossUnfit, 1)
	}
	if w.enc.cut > 0 {
		w.loss.Add(lossTextCut, w.enc.cut)
		w.enc.cut = 0
	}
}

// event writes an event. It is false for one that does not fit in a block.
func (w *Writer) event(ev *event.Event) bool {
	n := maxEvent + min(len(ev.Name), maxString)
	if n > w.queue.size {
		return false
	}
	if len(w.enc.buf)+n > w.limit {
		w.next()
	}
	w.enc.buf = append(w.enc.buf, entryEvent)
	w.enc.visitEvent(ev)
	w.records++
	return true
}

// entry writes anything but an event, after the definitions of the places that it refers
// to. It is false for a record that does not fit in a block, or that no reader would take.
func (w *Writer) entry(r Record) bool {
	// Definitions are forgotten when a keyframe begins or a block is lost, but hardly
	// twice in a row.
	for range 4 {
		resets := w.resets
		w.define(r)
		if resets != w.resets {
			continue
		}
		written, fits := w.try(func() { w.enc.record(r) })
		if written {
			w.records++
		}
		if written || !fits {
			return written
		}
	}
	return false
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
	if p == nil || !w.places.add(p.ID) {
		return
	}
	naming := p.naming.Load()
	l := p.location.Load()
	write := func() {
		w.enc.write(entryPlace)
		w.enc.definition(p, naming, l)
	}
	for written, fits := w.try(write); !written; written, fits = w.try(write) {
		if !fits {
			naming = unnamed
		}
	}
	w.places.add(p.ID)
}

// try has write write an entry to the block. If it has no room, the next block is begun.
// fits is false if the entry fits in no block, or if no reader would take it.
func (w *Writer) try(write func()) (written, fits bool) {
	before := w.enc
	write()
	full := len(w.enc.buf) > w.limit
	if !full && !w.enc.bad {
		return true, true
	}
	fits = !w.enc.bad && (len(before.buf) > 0 || w.limit == 0)
	if w.enc = before; fits {
		w.next()
	}
	return false, fits
}

// next begins another block, after a keyframe if one is due.
func (w *Writer) next() {
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
	w.keyframeDue = w.collecting == nil && (w.beginWithKeyframe || w.ring.full() || w.repair.due(w))
	w.limit = w.queue.size
	if w.keyframeDue {
		w.limit = 0
	}
	if w.collecting != nil {
		w.block.Flags = flagKeyframe
	}
	w.enc.begin(w.block.buf)
	w.records = 0
}

// forget has places defined again.
func (w *Writer) forget() {
	w.places.reset()
	w.resets++
}

// finish ends the block being filled.
func (w *Writer) finish() *block {
	b := w.block
	b.buf, b.Records = w.enc.buf, w.records
	b.First, b.Last = w.enc.first, w.enc.last
	w.time = max(w.time, b.Last)
	return b
}

// flushBlock ends the block being filled and begins another.
func (w *Writer) flushBlock() {
	b := w.finish()
	switch {
	case len(b.buf) == 0:
		w.queue.release(b)
	case w.collecting != nil:
		w.collecting.add(w, b)
	default:
		w.put(b, w.opts.Unbounded)
	}
	w.begin()
}

// put hands over a block, or drops it if the disk is behind.
func (w *Writer) put(b *block, must bool) {
	b.Lost = w.lost
	// Whoever compresses the block gives back what it took too much.
	size := int64(len(b.packed))
	if b.packed == nil {
		size = largestBlock(len(b.buf))
		b.room = w.ring.left
	}
	w.ring.left.Add(-size)
	if w.queue.put(b, must) {
		w.lost = 0
		return
	}
	w.ring.left.Add(size)
	w.lost += uint64(b.Records)
	w.loss.Add(lossNotRecorded, uint64(b.Records))
	w.queue.release(b)
	w.sink.gap.Store(true)
}
