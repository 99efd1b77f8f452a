package filememo

import (
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
)

// blockSize is the unit in which a file is read and recorded, in bytes.
const blockSize = 4 << 10

// A recorder records what is read of a file, by any number of goroutines. It reads each block
// once and remembers it, so that a second read gives the same bytes even if the file has changed.
type recorder struct {
	file   File
	mu     sync.Mutex
	blocks map[int64][]byte // by number; the last of the file is shorter
	room   int64            // bytes that may still be read
	err    error            // the last one of reading the file
}

func newRecorder(f File) *recorder {
	return &recorder{file: f, blocks: make(map[int64][]byte), room: maxRead}
}

// ReadAt implements io.ReaderAt.
func (r *recorder) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, io.EOF
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	end := min(off+int64(len(p)), r.file.Size) // the size is part of the name
	for at := off; at < end; at = off + int64(n) {
		if r.blocks[at/blockSize] == nil {
			if err := r.fetch(at/blockSize, (end-1)/blockSize+1); err != nil {
				return n, err
			}
		}
		n += copy(p[n:], r.blocks[at/blockSize][at%blockSize:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// fetch reads the missing blocks from first on, up to the next block that is there, or to
// end.
func (r *recorder) fetch(first, end int64) error {
	last := first + 1
	for last < end && r.blocks[last] == nil {
		last++
	}
	at := first * blockSize
	size := min(last*blockSize, r.file.Size) - at
	if r.room -= size; r.room < 0 {
		r.err = ErrTooLarge
		return r.err
	}
	b := make([]byte, size)
	if n, err := r.file.ReadAt(b, at); n < len(b) {
		r.err = errors.Join(io.ErrUnexpectedEOF, err) // truncated in between
		return r.err
	}
	for number := first; number < last; number++ {
		n := min(blockSize, len(b))
		r.blocks[number], b = b[:n:n], b[n:]
	}
	return nil
}

// A span is a run of consecutive blocks.
type span struct{ first, count int64 }

// spans returns what was read, in order.
func (r *recorder) spans() (out []span) {
	for _, number := range slices.Sorted(maps.Keys(r.blocks)) {
		if last := len(out) - 1; last >= 0 && out[last].first+out[last].count == number {
			out[last].count++
			continue
		}
		out = append(out, span{number, 1})
	}
	return out
}
