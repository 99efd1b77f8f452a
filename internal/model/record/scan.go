package record

import (
	"bytes"
	"cmp"
	"errors"
	"hash/crc32"
	"io"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A scanner finds the blocks of a file in the order of their numbers.
type scanner struct {
	r io.ReaderAt
	layout
	size     int64
	spans    []span // still to be read; the first one is being read
	offset   int64
	sequence uint64 // of the next block, if nothing is missing

	payload []byte
	damaged uint64 // stretches that cannot be read
}

// A span is a stretch of the file with blocks one after another.
type span struct {
	start, end int64
	sequence   uint64 // of the first block
}

func newScanner(r io.ReaderAt, size int64) (*scanner, error) {
	b := make([]byte, fileHeaderSize)
	n, err := readAt(r, b, 0)
	if err != nil {
		return nil, err
	}
	l, err := parseHeader(b[:min(int64(n), max(size, 0))])
	if err != nil {
		return nil, err
	}
	s := &scanner{r: r, layout: l, size: size}
	if l.regions == 0 {
		s.spans = []span{{fileHeaderSize, size, 0}}
	}
	for i := range l.regions {
		start := l.start(i)
		h, ok, err := s.header(start, size)
		if err != nil {
			return nil, err
		}
		if ok {
			s.spans = append(s.spans, span{start, min(start+l.regionSize, size), h.Sequence})
		}
	}
	sorting.Stable(s.spans, func(a, b span) int { return cmp.Compare(a.sequence, b.sequence) })
	if len(s.spans) > 0 {
		s.offset = s.spans[0].start
	}
	return s, nil
}

// progress returns which part of the file was read, from 0 to 1.
func (s *scanner) progress() float64 {
	var left int64
	for i, x := range s.spans {
		if left += x.end - x.start; i == 0 {
			left -= s.offset - x.start
		}
	}
	return 1 - float64(left)/float64(max(s.size, 1))
}

// readAt reads as much of b as there is.
func readAt(r io.ReaderAt, b []byte, offset int64) (int, error) {
	n, err := r.ReadAt(b, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// header reads the header of the block at offset.
func (s *scanner) header(offset, end int64) (h blockHeader, ok bool, err error) {
	if end-offset < blockHeaderSize {
		return h, false, nil
	}
	var b [blockHeaderSize]byte
	n, err := readAt(s.r, b[:], offset)
	if err != nil {
		return h, false, err
	}
	h, ok = parseBlock(b[:n], s.salt)
	return h, ok, nil
}

// next returns the next block; its payload holds until the next call. missing
// reports whether there were others before it that cannot be read. The error is
// io.EOF at the end.
func (s *scanner) next() (h blockHeader, payload []byte, missing bool, err error) {
	for len(s.spans) > 0 {
		end := s.spans[0].end
		h, ok, err := s.header(s.offset, end)
		if err != nil {
			return h, nil, false, err
		}
		after := s.offset + blockHeaderSize + int64(h.Length)
		switch {
		case ok && s.regions > 0 && s.offset != s.spans[0].start && h.Sequence != s.sequence:
			ok = false // from before the region was begun again
		case ok && after > end:
			ok = false
		case ok && h.Sequence < s.sequence:
			ok = false
		}
		if ok {
			payload, good, err := s.read(&h)
			if err != nil {
				return h, nil, false, err
			}
			if good {
				missing := h.Sequence != s.sequence
				s.offset, s.sequence = after, h.Sequence+1
				return h, payload, missing, nil
			}
		}
		if err := s.skip(ok, after); err != nil {
			return h, nil, false, err
		}
	}
	return h, nil, false, io.EOF
}

// read reads the payload of the block at the offset.
func (s *scanner) read(h *blockHeader) (payload []byte, good bool, err error) {
	if cap(s.payload) < int(h.Length) {
		s.payload = make([]byte, h.Length)
	}
	payload = s.payload[:h.Length]
	n, err := readAt(s.r, payload, s.offset+blockHeaderSize)
	if err != nil {
		return nil, false, err
	}
	return payload, n == len(payload) && crc32.Checksum(payload, castagnoli) == h.PayloadCRC, nil
}

// skip goes on after a bad block: in a ring to the next region, or
// else to the next block, which begins at after if the header is good.
func (s *scanner) skip(header bool, after int64) error {
	if s.regions > 0 {
		s.spans = s.spans[1:]
		if len(s.spans) > 0 {
			s.offset = s.spans[0].start
			if s.spans[0].sequence != s.sequence {
				s.damaged++
			}
		}
		return nil
	}
	end := s.spans[0].end
	if header {
		s.damaged++
		s.offset = after
		return nil
	}
	found, err := s.find(s.offset+1, end)
	if err != nil {
		return err
	}
	if found < 0 {
		s.spans = nil
		return nil
	}
	s.damaged++
	s.offset = found
	return nil
}

// find returns where a block with a good header begins, at offset or later, -1
// for nowhere.
func (s *scanner) find(offset, end int64) (int64, error) {
	// Small first: the next block is often near, in a file made to do harm too.
	for size := int64(512); offset < end; size = min(2*size, 64<<10) {
		b := make([]byte, min(size, end-offset))
		n, err := readAt(s.r, b, offset)
		if err != nil {
			return 0, err
		}
		if n < blockHeaderSize {
			break
		}
		for i := 0; ; i++ {
			at := bytes.Index(b[i:n], []byte(blockMagic))
			if at < 0 || i+at+blockHeaderSize > n {
				break
			}
			i += at
			h, ok := parseBlock(b[i:n], s.salt)
			if ok && h.Sequence >= s.sequence && offset+int64(i)+blockHeaderSize+int64(h.Length) <= end {
				return offset + int64(i), nil
			}
		}
		offset += int64(n - blockHeaderSize + 1)
	}
	return -1, nil
}
