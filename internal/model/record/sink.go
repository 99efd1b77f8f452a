package record

import (
	"io"
	"sync/atomic"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// A file is what a sink needs of an *os.File.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	Close() error
}

// A sink puts blocks in their places in the file. What cannot be written is
// dropped, and the next block that can says how much was lost; its place is
// where the dropped one would have been. So the recording goes on when there is
// room again.
type sink struct {
	file
	layout
	region   int
	offset   int64
	sequence uint64
	lost     uint64 // records since the last block that was written
	loss     *loss.Set
	err      atomic.Pointer[error]
	gap      atomic.Bool // blocks were dropped, with what they defined
}

// run writes blocks until the queue is closed.
func (s *sink) run(q *queue) {
	for b := q.take(); b != nil; b = q.take() {
		s.write(b)
		q.release(b)
	}
}

func (s *sink) write(b *block) {
	if b.flags&flagCut != 0 && s.regions > 0 {
		s.region = (s.region + 1) % s.regions
		s.offset = s.start(s.region)
	}
	b.sequence = s.sequence
	b.lost += s.lost
	bytes := b.bytes(s.salt)
	n, err := s.WriteAt(bytes, s.offset)
	if err == nil && n < len(bytes) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.err.Store(&err)
		s.lost = b.lost + uint64(b.records)
		s.loss.Add(lossNotRecorded, uint64(b.records))
		s.gap.Store(true)
		if s.regions == 0 {
			_ = s.Truncate(s.offset) // a reader passes over what is left of it
		}
		return
	}
	s.err.Store(nil)
	s.offset += int64(len(bytes))
	s.sequence++
	s.lost = 0
}
