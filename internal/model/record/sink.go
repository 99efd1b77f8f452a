package record

import (
	"io"
	"sync/atomic"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// A file has the methods of an *os.File that a sink needs.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	Close() error
}

// A sink writes blocks to their offsets in the file. A block that cannot be written is
// dropped. The next one that can be written says how much was lost, and goes where the
// dropped one would have been. So the recording goes on when there is room again.
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
	packer   packer
	packed   []byte // of a block
}

// run writes blocks until the queue is closed.
func (s *sink) run(q *queue) {
	for b := q.next(); b != nil; b = q.next() {
		s.write(b)
		q.release(b)
	}
}

func (s *sink) write(b *block) {
	if b.Flags&flagCut != 0 && s.regions > 0 {
		s.region = (s.region + 1) % s.regions
		s.offset = s.start(s.region)
	}
	b.Sequence = s.sequence
	b.Lost += s.lost
	if b.packed == nil {
		s.packer.pack(b, s.packed)
		s.packed = b.packed
	}
	bytes := b.packed
	b.put(bytes, s.salt)
	n, err := s.WriteAt(bytes, s.offset)
	if err == nil && n < len(bytes) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.err.Store(&err)
		s.lost = b.Lost + uint64(b.Records)
		s.loss.Add(lossNotRecorded, uint64(b.Records))
		s.gap.Store(true)
		if s.regions == 0 {
			_ = s.Truncate(s.offset) // a reader skips the rest of it
		}
		return
	}
	s.err.Store(nil)
	s.offset += int64(len(bytes))
	s.sequence++
	s.lost = 0
}
