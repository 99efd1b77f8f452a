package series

import "encoding/binary"

// chunkSize is the least size of a full chunk of a log, in bytes.
const chunkSize = 1 << 16

// A log is instants in order, packed: each is the time since the one before and whether
// it is its bucket's last, the number of its deltas, and those.
type log struct {
	chunks []chunk
	time   uint64 // of the last instant
	deltas int
}

type chunk struct {
	b      []byte
	before uint64 // time of the instant before the first
	last   uint64
}

func (l *log) add(time uint64, by []Delta, last bool) {
	n := len(l.chunks)
	if n == 0 || len(l.chunks[n-1].b) >= chunkSize {
		l.chunks = append(l.chunks, chunk{b: make([]byte, 0, chunkSize+chunkSize/16), before: l.time})
		n++
	}
	x := &l.chunks[n-1]
	head := (time - l.time) << 1
	if last {
		head++
	}
	x.b = binary.AppendUvarint(binary.AppendUvarint(x.b, head), uint64(len(by)))
	for _, d := range by {
		x.b = binary.AppendVarint(binary.AppendUvarint(x.b, uint64(d.Line)), d.Bytes)
	}
	x.last, l.time = time, time
	l.deltas += len(by)
}

// drain yields the instants, and forgets them.
func (l *log) drain(yield func(Instant) bool) { l.from(0, true, yield) }

// from yields the instants of the chunks that end at a time or later.
func (l *log) from(time uint64, forget bool, yield func(Instant) bool) {
	var by []Delta
	for i := range l.chunks {
		x := l.chunks[i]
		if forget {
			l.chunks[i].b = nil
		}
		if x.last < time {
			continue
		}
		for b, now := x.b, x.before; len(b) > 0; {
			unsigned := func() uint64 { v, n := binary.Uvarint(b); b = b[n:]; return v }
			head, count := unsigned(), unsigned()
			now += head >> 1
			by = by[:0]
			for range count {
				line := unsigned()
				v, n := binary.Varint(b)
				b = b[n:]
				by = append(by, Delta{int32(line), v})
			}
			if !yield(Instant{now, by, head&1 == 1}) {
				return
			}
		}
	}
}
